package ledgerstream.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.bookkeeper.client.api.BKException;

/**
 * Runs Apache BookKeeper's own client for the tests: JSON lines on stdin are requests, JSON lines on
 * stdout are the responses, in the order of completion. Ends at the end of stdin.
 */
public final class Driver {
    static final ObjectMapper JSON = new ObjectMapper();

    /** Operations that block, each on a thread of its own. */
    interface Blocking {
        ObjectNode run(Request request) throws Exception;
    }

    /** Operations that start in the order of the lines, so that appends keep their order. */
    interface Ordered {
        CompletionStage<ObjectNode> begin(Request request) throws Exception;
    }

    private final Map<String, Blocking> blocking = new HashMap<>();
    private final Map<String, Ordered> ordered = new HashMap<>();
    private final ExecutorService threads =
            Executors.newCachedThreadPool(
                    work -> {
                        Thread thread = new Thread(work, "driver");
                        thread.setDaemon(true);
                        return thread;
                    });
    private final OutputStream answers;

    private Driver(OutputStream answers) {
        this.answers = answers;
    }

    void blocking(String op, Blocking code) {
        blocking.put(op, code);
    }

    void ordered(String op, Ordered code) {
        ordered.put(op, code);
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream stdout = System.out;
        System.setOut(System.err); // stdout is for responses only
        Driver driver = new Driver(stdout);
        Clients clients = new Clients();
        new Writing(clients).offer(driver);
        new Reading(clients).offer(driver);
        new Administration(clients).offer(driver);
        new Pacing(clients).offer(driver);
        driver.serve();
        System.out.flush();
        Runtime.getRuntime().halt(0); // threads of open clients must not keep the process alive
    }

    private void serve() throws Exception {
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Request request = new Request(JSON.readTree(line));
            try {
                begin(request);
            } catch (Throwable failure) {
                answer(request, null, failure);
            }
        }
    }

    private void begin(Request request) throws Exception {
        Ordered inOrder = ordered.get(request.op);
        if (inOrder != null) {
            inOrder.begin(request).whenComplete((ok, failure) -> answer(request, ok, failure));
            return;
        }
        Blocking code = blocking.get(request.op);
        if (code == null) {
            throw new IllegalArgumentException("there is no operation " + request.op);
        }
        threads.execute(
                () -> {
                    try {
                        answer(request, code.run(request), null);
                    } catch (Throwable failure) {
                        answer(request, null, failure);
                    }
                });
    }

    private void answer(Request request, ObjectNode ok, Throwable failure) {
        ObjectNode answer = JSON.createObjectNode();
        answer.set("id", request.id);
        if (failure == null) {
            answer.set("ok", ok);
        } else {
            describe(failure, answer);
        }
        try {
            byte[] line = (answer.toString() + "\n").getBytes(StandardCharsets.UTF_8);
            synchronized (answers) {
                answers.write(line);
                answers.flush();
            }
        } catch (java.io.IOException gone) {
            Runtime.getRuntime().halt(1); // stdout is closed
        }
    }

    /** The failure of an operation, with the result of its completed steps. */
    static final class Partly extends Exception {
        private static final long serialVersionUID = 1L;
        private final transient ObjectNode achieved;

        Partly(Throwable cause, ObjectNode achieved) {
            super(cause);
            this.achieved = achieved;
        }
    }

    static Throwable cause(Throwable failure) {
        Throwable cause = failure;
        while ((cause instanceof CompletionException || cause instanceof ExecutionException)
                && cause.getCause() != null) {
            cause = cause.getCause();
        }
        return cause;
    }

    private static void describe(Throwable thrown, ObjectNode answer) {
        Throwable failure = cause(thrown);
        if (failure instanceof Partly) {
            answer.set("achieved", ((Partly) failure).achieved);
            failure = cause(failure.getCause());
        }
        if (failure instanceof BKException) {
            answer.put("code", ((BKException) failure).getCode());
        } else {
            answer.put("code", 0);
            failure.printStackTrace(System.err);
        }
        answer.put("error", nameOf(failure));
        answer.put("message", String.valueOf(failure.getMessage()));
    }

    /** Returns the name of an error: BKLedgerFencedException is "LedgerFenced". */
    static String nameOf(Throwable failure) {
        String name = failure.getClass().getSimpleName();
        return name.replaceFirst("^BK", "").replaceFirst("Exception$", "");
    }

    static <T> T get(CompletionStage<T> stage) throws Exception {
        CompletableFuture<T> future = stage.toCompletableFuture();
        try {
            return future.get();
        } catch (ExecutionException failure) {
            Throwable cause = cause(failure);
            if (cause instanceof Exception) {
                throw (Exception) cause;
            }
            throw failure;
        }
    }
}
