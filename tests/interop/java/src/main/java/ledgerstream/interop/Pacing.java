package ledgerstream.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.locks.LockSupport;
import org.apache.bookkeeper.client.api.WriteHandle;

/** Writers that append in the background, at a given pace, and record the results. */
final class Pacing {
    private final Clients clients;
    private final Map<Long, Paced> running = new ConcurrentHashMap<>();

    Pacing(Clients clients) {
        this.clients = clients;
    }

    void offer(Driver driver) {
        driver.blocking("pace_begin", this::begin);
        driver.blocking("pace_wait", this::waitAcked);
        driver.blocking("pace_close", this::close);
        driver.blocking("pace_finish", this::finish);
    }

    private ObjectNode begin(Request request) {
        long number = request.number("handle");
        Paced paced = new Paced(clients.writer(request), request);
        running.put(number, paced);
        Thread thread = new Thread(paced, "paced-" + number);
        thread.setDaemon(true);
        thread.start();
        return Request.nothing();
    }

    private ObjectNode waitAcked(Request request) throws Exception {
        Paced paced = running.get(request.number("handle"));
        return Request.nothing().put("acked", paced.waitAcked(request.small("acked")));
    }

    private ObjectNode close(Request request) {
        running.get(request.number("handle")).beginClose();
        return Request.nothing();
    }

    private ObjectNode finish(Request request) throws Exception {
        ObjectNode told = running.remove(request.number("handle")).finish();
        clients.forget(request);
        return told;
    }

    /** One writer. Its monitor guards the state that callbacks and callers share. */
    private static final class Paced implements Runnable {
        private final WriteHandle writer;
        private final long seed;
        private final int[] sizes;
        private final long[] pausesUs;
        private final int windowSize;
        private final Semaphore window;

        private final List<Long> acked = new ArrayList<>();
        private final List<String> wrong = new ArrayList<>();
        private int pushed;
        private int settled;
        private boolean stops;
        private boolean closes;
        private boolean idle;
        private boolean ended;
        private long closedAt;
        private boolean closed;
        private Throwable error;

        Paced(WriteHandle writer, Request request) {
            this.writer = writer;
            this.seed = request.number("seed");
            JsonNode given = request.node("sizes");
            JsonNode pauses = request.node("pauses_us");
            this.sizes = new int[given.size()];
            this.pausesUs = new long[given.size()];
            for (int i = 0; i < sizes.length; i++) {
                sizes[i] = given.get(i).asInt();
                pausesUs[i] = pauses.get(i).asLong();
            }
            this.windowSize = request.small("window");
            this.window = new Semaphore(windowSize);
        }

        @Override
        public void run() {
            try {
                for (int i = 0; i < sizes.length && goesOn(); i++) {
                    if (pausesUs[i] > 0) {
                        LockSupport.parkNanos(pausesUs[i] * 1000);
                    }
                    window.acquire();
                    if (goesOn()) {
                        append(sizes[i]);
                    }
                }
                setIdle();
                if (waitEnd()) {
                    closeLedger();
                }
            } catch (InterruptedException | RuntimeException failure) {
                failed(failure);
            } finally {
                setEnded();
            }
        }

        private synchronized boolean goesOn() {
            return !stops && !closes && error == null;
        }

        private synchronized void setIdle() {
            idle = true;
            notifyAll();
        }

        private synchronized void setEnded() {
            ended = true;
            notifyAll();
        }

        /** Waits for the command to stop or to close; returns true for close. */
        private synchronized boolean waitEnd() throws InterruptedException {
            while (!stops && !closes && error == null) {
                wait();
            }
            return closes;
        }

        private void closeLedger() {
            try {
                Driver.get(writer.closeAsync());
                synchronized (this) {
                    closed = true;
                    closedAt = writer.getLedgerMetadata().getLastEntryId();
                }
            } catch (Exception failure) {
                failed(failure);
            }
        }

        private CompletableFuture<Long> append(int size) {
            long turn;
            synchronized (this) {
                turn = pushed++;
            }
            CompletableFuture<Long> appended = writer.appendAsync(Payload.of(seed, turn, size));
            return appended.whenComplete((entry, failure) -> settle(turn, entry, failure));
        }

        private void settle(long turn, Long entry, Throwable failure) {
            synchronized (this) {
                settled++;
                if (failure == null) {
                    acked.add(entry);
                    if (entry != turn) {
                        wrong.add("append " + turn + " got entry id " + entry);
                    }
                }
                notifyAll();
            }
            if (failure != null) {
                failed(failure);
            }
            window.release();
        }

        private synchronized void failed(Throwable failure) {
            if (error == null) {
                error = Driver.cause(failure);
            }
            notifyAll();
        }

        synchronized int waitAcked(int count) throws InterruptedException {
            while (acked.size() < count && error == null && !ended) {
                if (idle && settled == pushed) {
                    break;
                }
                wait();
            }
            return acked.size();
        }

        synchronized void beginClose() {
            closes = true;
            notifyAll();
        }

        ObjectNode finish() throws Exception {
            boolean knows;
            synchronized (this) {
                stops = true;
                notifyAll();
                while (!ended || settled < pushed) {
                    wait();
                }
                knows = error != null || closed;
            }
            if (!knows) {
                try {
                    append(1).get();
                } catch (java.util.concurrent.ExecutionException told) {
                    failed(told);
                }
            }
            return describe();
        }

        private synchronized ObjectNode describe() {
            ObjectNode told = Request.nothing().put("pushed", pushed);
            ArrayNode ids = told.putArray("acked");
            acked.forEach(ids::add);
            ArrayNode ours = told.putArray("wrong");
            wrong.forEach(ours::add);
            if (closed) {
                told.put("closed_at", closedAt);
            }
            if (error != null) {
                told.put("error", Driver.nameOf(error));
                told.put("message", String.valueOf(error.getMessage()));
            }
            return told;
        }
    }
}
