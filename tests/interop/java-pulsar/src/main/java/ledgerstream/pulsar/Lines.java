package ledgerstream.pulsar;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/**
 * Requests and responses as lines of JSON on standard input and output, one at a time:
 * {"op": "close", ...} gives {"ok": {...}} or {"error": "...", "message": "..."}.
 */
final class Lines {
    interface Operation {
        void perform(JsonNode request, ObjectNode answer) throws Exception;
    }

    static final ObjectMapper JSON = new ObjectMapper();

    private Lines() {
    }

    /**
     * To be called at the beginning of `main`. Other output of the process must not look like a
     * response, and if `main` fails the process must end, whatever other threads there are.
     */
    static PrintStream takeOutput() {
        Thread.currentThread().setUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        });
        PrintStream answers = System.out;
        System.setOut(System.err);
        return answers;
    }

    /** Serves requests until standard input is closed. */
    static void serve(Map<String, Operation> operations, PrintStream answers) throws IOException {
        answers.println("ready");
        answers.flush();
        BufferedReader input =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            answers.println(JSON.writeValueAsString(answer(operations, JSON.readTree(line))));
            answers.flush();
        }
    }

    private static ObjectNode answer(Map<String, Operation> operations, JsonNode request) {
        ObjectNode answer = JSON.createObjectNode();
        try {
            Operation operation = operations.get(request.get("op").asText());
            if (operation == null) {
                throw new IllegalArgumentException("no such operation: " + request.get("op"));
            }
            operation.perform(request, answer.putObject("ok"));
        } catch (Exception error) {
            error.printStackTrace();
            answer.removeAll();
            answer.put("error", error.getClass().getSimpleName());
            answer.put("message", String.valueOf(error.getMessage()));
        }
        return answer;
    }

    /** Returns the payload of entry or message `index`: the number, then bytes derived from it. */
    static byte[] payload(long index, int size) {
        byte[] bytes = new byte[Math.max(size, Long.BYTES)];
        for (int at = 0; at < Long.BYTES; at++) {
            bytes[at] = (byte) (index >>> (8 * (Long.BYTES - 1 - at)));
        }
        for (int at = Long.BYTES; at < bytes.length; at++) {
            bytes[at] = (byte) (index * 31 + at * 7L);
        }
        return bytes;
    }
}
