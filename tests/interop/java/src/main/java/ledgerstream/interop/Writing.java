package ledgerstream.interop;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.bookkeeper.client.api.CreateAdvBuilder;
import org.apache.bookkeeper.client.api.CreateBuilder;
import org.apache.bookkeeper.client.api.Handle;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteAdvHandle;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.client.api.WriteHandle;

/** Creates ledgers, appends to them, closes them. */
final class Writing {
    private static final int WINDOW = 1000;
    private final Clients clients;

    Writing(Clients clients) {
        this.clients = clients;
    }

    void offer(Driver driver) {
        driver.blocking("client", this::client);
        driver.blocking("close_client", this::closeClient);
        driver.blocking("create", this::create);
        driver.ordered("append", this::append);
        driver.ordered("write", this::write);
        driver.blocking("append_many", this::appendMany);
        driver.blocking("force", this::force);
        driver.blocking("close", this::close);
        driver.blocking("abandon", this::abandon);
        driver.blocking("written", this::written);
    }

    private ObjectNode client(Request request) throws Exception {
        return Request.nothing().put("client", clients.open(request.textByName("settings")));
    }

    private ObjectNode closeClient(Request request) throws Exception {
        clients.close(request.number("client"));
        return Request.nothing();
    }

    private ObjectNode create(Request request) throws Exception {
        int ensemble = request.small("ensemble", 3);
        int writeQuorum = request.small("write_quorum", ensemble);
        CreateBuilder builder =
                clients.client(request)
                        .newCreateLedgerOp()
                        .withEnsembleSize(ensemble)
                        .withWriteQuorumSize(writeQuorum)
                        .withAckQuorumSize(request.small("ack_quorum", writeQuorum / 2 + 1))
                        .withDigestType(Clients.digest(request))
                        .withPassword(Clients.password(request))
                        .withCustomMetadata(request.bytesByName("custom"));
        if (request.is("deferred_sync", false)) {
            builder = builder.withWriteFlags(WriteFlag.DEFERRED_SYNC);
        }
        ReadHandle handle;
        if (request.is("adv", false)) {
            CreateAdvBuilder own = builder.makeAdv();
            if (request.has("ledger")) {
                own = own.withLedgerId(request.number("ledger"));
            }
            handle = Driver.get(own.execute());
        } else {
            handle = Driver.get(builder.execute());
        }
        return Request.nothing()
                .put("handle", clients.keep(handle))
                .put("ledger", handle.getId());
    }

    private CompletionStage<ObjectNode> append(Request request) {
        WriteHandle writer = clients.writer(request);
        return writer.appendAsync(request.bytes("data"))
                .thenApply(last -> Request.nothing().put("last", (long) last));
    }

    private CompletionStage<ObjectNode> write(Request request) {
        WriteAdvHandle writer = (WriteAdvHandle) clients.handle(request);
        return writer.writeAsync(request.number("entry"), request.bytes("data"))
                .thenApply(last -> Request.nothing().put("last", (long) last));
    }

    /** Appends with a window in flight; entries are acknowledged in order, so that a count suffices. */
    private ObjectNode appendMany(Request request) throws Exception {
        WriteHandle writer = clients.writer(request);
        long seed = request.number("seed", 0);
        long first = request.number("first", 0);
        long count = request.number("count");
        int size = request.small("size");
        long pauseUs = request.number("pause_us", 0);
        Semaphore window = new Semaphore(request.small("window", WINDOW));
        int permits = window.availablePermits();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Progress progress = new Progress();
        for (long i = 0; i < count && failure.get() == null; i++) {
            byte[] payload = Payload.of(seed, first + i, size);
            if (pauseUs > 0) {
                Thread.sleep(pauseUs / 1000, (int) (pauseUs % 1000) * 1000);
            }
            window.acquire();
            CompletableFuture<Long> appended = writer.appendAsync(payload);
            appended.whenComplete(
                    (entry, failed) -> {
                        if (failed == null) {
                            progress.acknowledged(entry);
                        } else {
                            failure.compareAndSet(null, failed);
                        }
                        window.release();
                    });
        }
        window.acquire(permits);
        ObjectNode achieved = progress.describe().put("lac", writer.getLastAddConfirmed());
        if (failure.get() != null) {
            throw new Driver.Partly(failure.get(), achieved);
        }
        return achieved;
    }

    /** Returns the number of acknowledged entries and the highest one. */
    private static final class Progress {
        private long count;
        private long last = -1;

        synchronized void acknowledged(long entry) {
            count++;
            last = Math.max(last, entry);
        }

        synchronized ObjectNode describe() {
            return Request.nothing().put("acked", count).put("last", last);
        }
    }

    private ObjectNode force(Request request) throws Exception {
        Handle handle = clients.handle(request);
        if (handle instanceof WriteAdvHandle && !(handle instanceof WriteHandle)) {
            Driver.get(((WriteAdvHandle) handle).force());
        } else {
            Driver.get(((WriteHandle) handle).force());
        }
        return Request.nothing().put("lac", ((ReadHandle) handle).getLastAddConfirmed());
    }

    private ObjectNode close(Request request) throws Exception {
        Handle handle = clients.forget(request);
        Driver.get(handle.closeAsync());
        ReadHandle reader = (ReadHandle) handle;
        return Request.nothing()
                .put("last", reader.getLastAddConfirmed())
                .put("length", reader.getLength());
    }

    /** Drops the handle without closing it, like a program that has crashed. */
    private ObjectNode abandon(Request request) {
        clients.forget(request);
        return Request.nothing();
    }

    private ObjectNode written(Request request) {
        ReadHandle handle = clients.reader(request);
        ObjectNode answer =
                Request.nothing()
                        .put("lac", handle.getLastAddConfirmed())
                        .put("length", handle.getLength());
        if (handle instanceof WriteHandle) {
            answer.put("pushed", ((WriteHandle) handle).getLastAddPushed());
        }
        return answer;
    }
}
