package ledgerstream.pulsar;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageRoutingMode;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

/** A program that uses Pulsar: it produces and consumes. Argument: the broker's service URL. */
public final class PulsarClientDriver {
    private static final int TIMEOUT_S = 300;

    private final PulsarClient client;
    private final Map<String, Producer<byte[]>> producers = new HashMap<>();
    private final Map<String, Consumer<byte[]>> consumers = new HashMap<>();

    /** A message with a schema, which the broker stores in a ledger of its own. */
    public static final class Click {
        public long number;
        public String page;
    }

    private PulsarClientDriver(PulsarClient client) {
        this.client = client;
    }

    public static void main(String[] arguments) throws Exception {
        var answers = Lines.takeOutput();
        PulsarClient client = PulsarClient.builder()
            .serviceUrl(arguments[0])
            .ioThreads(1)
            .operationTimeout(TIMEOUT_S, TimeUnit.SECONDS)
            .build();
        Lines.serve(new PulsarClientDriver(client).operations(), answers);
        client.close();
        System.exit(0);
    }

    private Map<String, Lines.Operation> operations() {
        return Map.of(
            "produce", this::produce,
            "subscribe", this::subscribe,
            "consume", this::consume,
            "read", this::read,
            "clicks", this::clicks,
            "close", this::close);
    }

    /** Sends messages `first`..`first + count - 1`; responds when the broker has all of them. */
    private void produce(JsonNode request, ObjectNode answer) throws Exception {
        String topic = request.get("topic").asText();
        Producer<byte[]> producer = producers.get(topic);
        if (producer == null) {
            producer = client.newProducer()
                .topic(topic)
                .enableBatching(request.path("batching").asBoolean())
                .messageRoutingMode(MessageRoutingMode.SinglePartition)
                .sendTimeout(TIMEOUT_S, TimeUnit.SECONDS)
                .blockIfQueueFull(true)
                .create();
            producers.put(topic, producer);
        }
        long first = request.get("first").asLong();
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        for (int i = 0; i < request.get("count").asInt(); i++) {
            byte[] payload = Lines.payload(first + i, request.get("size").asInt());
            var message = producer.newMessage().value(payload);
            if (request.has("keys")) {
                message.key("key-" + (first + i) % request.get("keys").asInt());
            }
            sent.add(message.sendAsync());
        }
        CompletableFuture.allOf(sent.toArray(new CompletableFuture<?>[0]))
            .get(TIMEOUT_S, TimeUnit.SECONDS);
    }

    private void subscribe(JsonNode request, ObjectNode answer) throws Exception {
        consumers.put(request.get("topic").asText(), client.newConsumer()
            .topic(request.get("topic").asText())
            .subscriptionName(request.get("subscription").asText())
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
            .subscribe());
    }

    /** Receives `count` messages in order, each once, and acknowledges them. */
    private void consume(JsonNode request, ObjectNode answer) throws Exception {
        Consumer<byte[]> consumer = consumers.get(request.get("topic").asText());
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        for (int left = request.get("count").asInt(); left > 0; left--) {
            Message<byte[]> message = consumer.receive(TIMEOUT_S, TimeUnit.SECONDS);
            if (message == null) {
                throw new PulsarClientException.TimeoutException(left + " messages did not come");
            }
            digest.update(message.getValue());
            consumer.acknowledge(message);
        }
        answer.put("sha256", HexFormat.of().formatHex(digest.digest()));
    }

    /** Reads a topic from its beginning to its end; of a compacted topic, the compacted view. */
    private void read(JsonNode request, ObjectNode answer) throws Exception {
        var numbers = answer.putArray("numbers");
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        try (Reader<byte[]> reader = client.newReader()
                .topic(request.get("topic").asText())
                .startMessageId(MessageId.earliest)
                .readCompacted(request.path("compacted").asBoolean())
                .create()) {
            while (reader.hasMessageAvailable()) {
                byte[] value = reader.readNext(TIMEOUT_S, TimeUnit.SECONDS).getValue();
                digest.update(value);
                numbers.add(java.nio.ByteBuffer.wrap(value).getLong());
            }
        }
        answer.put("sha256", HexFormat.of().formatHex(digest.digest()));
    }

    /** Produces and reads back messages with a schema. */
    private void clicks(JsonNode request, ObjectNode answer) throws Exception {
        Schema<Click> schema = Schema.JSON(Click.class);
        String topic = request.get("topic").asText();
        try (Producer<Click> producer = client.newProducer(schema).topic(topic).create()) {
            Click click = new Click();
            click.number = request.get("number").asLong();
            click.page = "start";
            producer.send(click);
        }
        var numbers = answer.putArray("numbers");
        try (Reader<Click> reader = client.newReader(schema)
                .topic(topic).startMessageId(MessageId.earliest).create()) {
            while (reader.hasMessageAvailable()) {
                numbers.add(reader.readNext(TIMEOUT_S, TimeUnit.SECONDS).getValue().number);
            }
        }
    }

    /** Closes all producers and consumers of a topic. */
    private void close(JsonNode request, ObjectNode answer) throws Exception {
        Producer<byte[]> producer = producers.remove(request.get("topic").asText());
        if (producer != null) {
            producer.close();
        }
        Consumer<byte[]> consumer = consumers.remove(request.get("topic").asText());
        if (consumer != null) {
            consumer.close();
        }
    }
}
