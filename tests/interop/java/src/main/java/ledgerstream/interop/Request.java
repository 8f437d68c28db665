package ledgerstream.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Base64;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;

/** One request of the tests: an operation and its named arguments. */
final class Request {
    final JsonNode id;
    final String op;
    private final JsonNode arguments;

    Request(JsonNode line) {
        this.id = line.path("id");
        this.op = line.path("op").asText();
        this.arguments = line;
    }

    boolean has(String name) {
        return arguments.hasNonNull(name);
    }

    JsonNode node(String name) {
        if (!has(name)) {
            throw new IllegalArgumentException(op + " needs the argument " + name);
        }
        return arguments.get(name);
    }

    long number(String name) {
        return node(name).asLong();
    }

    long number(String name, long otherwise) {
        return has(name) ? number(name) : otherwise;
    }

    int small(String name) {
        return Math.toIntExact(number(name));
    }

    int small(String name, int otherwise) {
        return Math.toIntExact(number(name, otherwise));
    }

    boolean is(String name, boolean otherwise) {
        return has(name) ? node(name).asBoolean() : otherwise;
    }

    String text(String name) {
        return node(name).asText();
    }

    String text(String name, String otherwise) {
        return has(name) ? text(name) : otherwise;
    }

    byte[] bytes(String name) {
        return Base64.getDecoder().decode(text(name));
    }

    byte[] bytes(String name, byte[] otherwise) {
        return has(name) ? bytes(name) : otherwise;
    }

    Map<String, byte[]> bytesByName(String name) {
        Map<String, byte[]> found = new HashMap<>();
        if (has(name)) {
            Iterator<Map.Entry<String, JsonNode>> fields = node(name).fields();
            while (fields.hasNext()) {
                Map.Entry<String, JsonNode> field = fields.next();
                found.put(field.getKey(), Base64.getDecoder().decode(field.getValue().asText()));
            }
        }
        return found;
    }

    Map<String, String> textByName(String name) {
        Map<String, String> found = new HashMap<>();
        if (has(name)) {
            Iterator<Map.Entry<String, JsonNode>> fields = node(name).fields();
            while (fields.hasNext()) {
                Map.Entry<String, JsonNode> field = fields.next();
                found.put(field.getKey(), field.getValue().asText());
            }
        }
        return found;
    }

    static ObjectNode nothing() {
        return Driver.JSON.createObjectNode();
    }

    static String base64(byte[] bytes) {
        return Base64.getEncoder().encodeToString(bytes);
    }
}
