package ledgerstream.interop;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;

/** Opens ledgers, with and without recovery, and reads them in every way of the client. */
final class Reading {
    private final Clients clients;

    Reading(Clients clients) {
        this.clients = clients;
    }

    void offer(Driver driver) {
        driver.blocking("open", this::open);
        driver.blocking("read", request -> entries(read(request, "readAsync")));
        driver.blocking("read_unconfirmed", request -> entries(read(request, "unconfirmed")));
        driver.blocking("batch_read", request -> entries(batchRead(request, "batchReadAsync")));
        driver.blocking(
                "batch_read_unconfirmed",
                request -> entries(batchRead(request, "batchReadUnconfirmedAsync")));
        driver.blocking("verify", this::verify);
        driver.blocking("read_lac", this::readLac);
        driver.blocking("try_read_lac", this::tryReadLac);
        driver.blocking("explicit_lac", this::explicitLac);
        driver.blocking("long_poll", this::longPoll);
        driver.blocking("handle", request -> describe(clients.reader(request)));
    }

    private ObjectNode open(Request request) throws Exception {
        ReadHandle handle =
                Driver.get(
                        clients.client(request)
                                .newOpenLedgerOp()
                                .withLedgerId(request.number("ledger"))
                                .withDigestType(Clients.digest(request))
                                .withPassword(Clients.password(request))
                                .withRecovery(request.is("recovery", true))
                                .execute());
        return describe(handle).put("handle", clients.keep(handle));
    }

    private static ObjectNode describe(ReadHandle handle) {
        return Request.nothing()
                .put("ledger", handle.getId())
                .put("lac", handle.getLastAddConfirmed())
                .put("length", handle.getLength())
                .put("closed", handle.isClosed());
    }

    private LedgerEntries read(Request request, String how) throws Exception {
        ReadHandle handle = clients.reader(request);
        long first = request.number("first");
        long last = request.number("last", first);
        return Driver.get(
                how.equals("unconfirmed")
                        ? handle.readUnconfirmedAsync(first, last)
                        : handle.readAsync(first, last));
    }

    /** Calls the method by reflection, because 4.16 does not have it. */
    private LedgerEntries batchRead(Request request, String method) throws Exception {
        try {
            Object future =
                    ReadHandle.class
                            .getMethod(method, long.class, int.class, long.class)
                            .invoke(
                                    clients.reader(request),
                                    request.number("first"),
                                    request.small("count", 0),
                                    request.number("bytes", 0));
            return Driver.get(
                    (java.util.concurrent.CompletableFuture<LedgerEntries>)
                            cast(future));
        } catch (InvocationTargetException failure) {
            throw failure.getCause() instanceof Exception
                    ? (Exception) failure.getCause()
                    : failure;
        }
    }

    @SuppressWarnings("unchecked")
    private static <T> T cast(Object object) {
        return (T) object;
    }

    private static ObjectNode entries(LedgerEntries read) {
        try (LedgerEntries entries = read) {
            ArrayNode list = Driver.JSON.createArrayNode();
            for (LedgerEntry entry : entries) {
                list.add(entryOf(entry));
            }
            ObjectNode answer = Request.nothing();
            answer.set("entries", list);
            return answer;
        }
    }

    private static ObjectNode entryOf(LedgerEntry entry) {
        return Request.nothing()
                .put("entry", entry.getEntryId())
                .put("length", entry.getLength())
                .put("data", Request.base64(entry.getEntryBytes()));
    }

    /**
     * Reads a range with several threads, each the whole range in steps, and compares every byte with
     * the payload function. Entry {@code first} has payload number {@code number}.
     */
    private ObjectNode verify(Request request) throws Exception {
        int threads = request.small("threads", 1);
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        try {
            List<Future<ObjectNode>> done = new ArrayList<>();
            for (int i = 0; i < threads; i++) {
                done.add(pool.submit(() -> verifyAll(request)));
            }
            ObjectNode answer = null;
            for (Future<ObjectNode> one : done) {
                answer = one.get();
            }
            return answer;
        } finally {
            pool.shutdown();
        }
    }

    private ObjectNode verifyAll(Request request) throws Exception {
        ReadHandle handle = clients.reader(request);
        long first = request.number("first", 0);
        long last = request.number("last");
        long step = request.number("step", 500);
        long seed = request.number("seed", 0);
        long offset = request.number("number", first) - first;
        int size = request.small("size");
        boolean unconfirmed = request.is("unconfirmed", false);
        long seen = 0;
        for (long from = first; from <= last; from += step) {
            long to = Math.min(last, from + step - 1);
            long next = from;
            try (LedgerEntries entries =
                    Driver.get(
                            unconfirmed
                                    ? handle.readUnconfirmedAsync(from, to)
                                    : handle.readAsync(from, to))) {
                for (LedgerEntry entry : entries) {
                    byte[] expected = Payload.of(seed, entry.getEntryId() + offset, size);
                    if (entry.getEntryId() != next
                            || !Arrays.equals(expected, entry.getEntryBytes())) {
                        throw new IllegalStateException(
                                "entry " + entry.getEntryId() + " differs, due was " + next);
                    }
                    next++;
                    seen++;
                }
            }
            if (next != to + 1) {
                throw new IllegalStateException("entries from " + next + " to " + to + " missing");
            }
        }
        return Request.nothing().put("entries", seen).put("bytes", seen * size);
    }

    private ObjectNode readLac(Request request) throws Exception {
        return Request.nothing()
                .put("lac", (long) Driver.get(clients.reader(request).readLastAddConfirmedAsync()));
    }

    private ObjectNode tryReadLac(Request request) throws Exception {
        return Request.nothing()
                .put(
                        "lac",
                        (long) Driver.get(clients.reader(request).tryReadLastAddConfirmedAsync()));
    }

    private ObjectNode explicitLac(Request request) throws Exception {
        LedgerHandle handle = (LedgerHandle) clients.reader(request);
        return Request.nothing().put("lac", handle.readExplicitLastConfirmed());
    }

    private ObjectNode longPoll(Request request) throws Exception {
        try (LastConfirmedAndEntry found =
                Driver.get(
                        clients.reader(request)
                                .readLastAddConfirmedAndEntryAsync(
                                        request.number("entry"),
                                        request.number("timeout_ms"),
                                        request.is("parallel", false)))) {
            ObjectNode answer = Request.nothing().put("lac", found.getLastAddConfirmed());
            if (found.hasEntry()) {
                answer.set("entry", entryOf(found.getEntry()));
            }
            return answer;
        }
    }
}
