package ledgerstream.pulsar;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.security.MessageDigest;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.mledger.AsyncCallbacks;
import org.apache.bookkeeper.mledger.Entry;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.bookkeeper.mledger.ManagedLedgerConfig;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.bookkeeper.mledger.ManagedLedgerFactoryConfig;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.apache.bookkeeper.mledger.impl.ManagedLedgerFactoryImpl;
import org.apache.pulsar.common.api.proto.CommandSubscribe.InitialPosition;
import org.apache.pulsar.metadata.api.MetadataStoreConfig;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver;

/**
 * Pulsar's managed ledger, the part of a broker that writes and reads ledgers, without a broker.
 * Arguments: ZooKeeper's host:port, the address of the ledgers' metadata, and "v2" or "v3".
 */
public final class ManagedLedgerDriver {
    private static final int PENDING_MAX = 1000;
    private static final int TIMEOUT_S = 300;
    /** A bookie on a busy machine may be slow, which is not a failure. */
    private static final int REQUEST_TIMEOUT_S = 90;

    private final ManagedLedgerFactoryImpl factory;
    private final Map<String, ManagedLedger> ledgers = new HashMap<>();

    private ManagedLedgerDriver(ManagedLedgerFactoryImpl factory) {
        this.factory = factory;
    }

    public static void main(String[] arguments) throws Exception {
        var answers = Lines.takeOutput();
        MetadataStoreExtended store = MetadataStoreExtended.create(
            "zk:" + arguments[0], MetadataStoreConfig.builder().build());
        PulsarMetadataClientDriver.init();  // makes "metadata-store:" known, as the broker does
        ClientConfiguration bookkeeper = new ClientConfiguration();
        bookkeeper.setMetadataServiceUri(arguments[1]);
        bookkeeper.setUseV2WireProtocol(arguments[2].equals("v2"));
        bookkeeper.setNumIOThreads(2);
        bookkeeper.setNumWorkerThreads(2);
        bookkeeper.setAddEntryTimeout(REQUEST_TIMEOUT_S);
        bookkeeper.setReadEntryTimeout(REQUEST_TIMEOUT_S);
        bookkeeper.setClientConnectTimeoutMillis(1000 * REQUEST_TIMEOUT_S);
        ManagedLedgerFactoryConfig settings = new ManagedLedgerFactoryConfig();
        settings.setMaxCacheSize(0);  // what is read comes from bookies
        settings.setNumManagedLedgerSchedulerThreads(2);
        var factory = new ManagedLedgerFactoryImpl(store, bookkeeper, settings);
        Lines.serve(new ManagedLedgerDriver(factory).operations(), answers);
        factory.shutdown();
        store.close();
        System.exit(0);
    }

    private Map<String, Lines.Operation> operations() {
        return Map.of(
            "open", this::open,
            "append", this::append,
            "ledgers", this::listLedgers,
            "read", this::read,
            "mark_delete", this::markDelete,
            "trim", this::trim,
            "close", this::close,
            "delete", this::delete);
    }

    private void open(JsonNode request, ObjectNode answer) throws Exception {
        ManagedLedgerConfig config = new ManagedLedgerConfig()
            .setEnsembleSize(request.get("ensemble").asInt())
            .setWriteQuorumSize(request.get("write_quorum").asInt())
            .setAckQuorumSize(request.get("ack_quorum").asInt())
            .setMetadataEnsembleSize(request.get("ensemble").asInt())
            .setMetadataWriteQuorumSize(request.get("write_quorum").asInt())
            .setMetadataAckQuorumSize(request.get("ack_quorum").asInt())
            .setMaxEntriesPerLedger(request.get("entries_per_ledger").asInt())
            .setMetadataMaxEntriesPerLedger(50)
            .setRetentionTime(0, TimeUnit.SECONDS);
        config.setMinimumRolloverTime(0, TimeUnit.SECONDS);
        String name = request.get("name").asText();
        ManagedLedger ledger = factory.open(name, config);
        ledgers.put(name, ledger);
        for (JsonNode cursor : request.get("cursors")) {
            ledger.openCursor(cursor.asText(), InitialPosition.Earliest);
        }
        answer.put("entries", ledger.getNumberOfEntries());
        for (ManagedCursor cursor : ledger.getCursors()) {
            answer.withObject("/cursors").set(
                cursor.getName(), position(cursor.getMarkDeletedPosition()));
        }
    }

    /** Appends entries `first`..`first + count - 1` of `size` bytes, many of them in flight. */
    private void append(JsonNode request, ObjectNode answer) throws Exception {
        long first = request.get("first").asLong();
        int count = request.get("count").asInt();
        Semaphore pending = new Semaphore(PENDING_MAX);
        CountDownLatch left = new CountDownLatch(count);
        AtomicReference<ManagedLedgerException> failure = new AtomicReference<>();
        AtomicReference<Position> last = new AtomicReference<>();
        var callback = new AsyncCallbacks.AddEntryCallback() {
            @Override
            public void addComplete(Position at, io.netty.buffer.ByteBuf data, Object context) {
                last.accumulateAndGet(at, (a, b) -> a == null || a.compareTo(b) < 0 ? b : a);
                pending.release();
                left.countDown();
            }

            @Override
            public void addFailed(ManagedLedgerException error, Object context) {
                failure.compareAndSet(null, error);
                pending.release();
                left.countDown();
            }
        };
        ManagedLedger ledger = ledgers.get(request.get("name").asText());
        for (int i = 0; i < count; i++) {
            pending.acquire();
            byte[] payload = Lines.payload(first + i, request.get("size").asInt());
            ledger.asyncAddEntry(payload, callback, null);
        }
        if (!left.await(TIMEOUT_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException(left.getCount() + " appends were not answered");
        }
        if (failure.get() != null) {
            throw failure.get();
        }
        answer.set("last", position(last.get()));
    }

    private void listLedgers(JsonNode request, ObjectNode answer) {
        ArrayNode list = answer.putArray("ledgers");
        for (var info : ledgers.get(request.get("name").asText()).getLedgersInfo().values()) {
            list.addObject()
                .put("ledger", info.getLedgerId())
                .put("entries", info.getEntries())
                .put("bytes", info.getSize());
        }
    }

    /** Reads on from the cursor; returns a digest of all payloads and the last position. */
    private void read(JsonNode request, ObjectNode answer) throws Exception {
        ManagedCursor cursor = ledgers.get(request.get("name").asText())
            .openCursor(request.get("cursor").asText());
        if (request.path("rewind").asBoolean()) {
            cursor.rewind();
        }
        int count = request.get("count").asInt();
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        Position last = null;
        while (count > 0) {
            List<Entry> entries = cursor.readEntriesOrWait(Math.min(count, 500));
            for (Entry entry : entries) {
                digest.update(entry.getData());
                last = PositionFactory.create(entry.getLedgerId(), entry.getEntryId());
                entry.release();
            }
            count -= entries.size();
        }
        answer.put("sha256", HexFormat.of().formatHex(digest.digest()));
        answer.set("last", position(last));
    }

    private void markDelete(JsonNode request, ObjectNode answer) throws Exception {
        ledgers.get(request.get("name").asText())
            .openCursor(request.get("cursor").asText())
            .markDelete(PositionFactory.create(
                request.get("ledger").asLong(), request.get("entry").asLong()));
    }

    private void trim(JsonNode request, ObjectNode answer) throws Exception {
        CompletableFuture<?> done = new CompletableFuture<>();
        ledgers.get(request.get("name").asText()).trimConsumedLedgersInBackground(done);
        done.get(TIMEOUT_S, TimeUnit.SECONDS);
    }

    private void close(JsonNode request, ObjectNode answer) throws Exception {
        ledgers.remove(request.get("name").asText()).close();
    }

    /** Reads the information of a managed ledger that is not open here. */
    private void delete(JsonNode request, ObjectNode answer) throws Exception {
        factory.delete(request.get("name").asText());
    }

    private static ArrayNode position(Position position) {
        return Lines.JSON.createArrayNode().add(position.getLedgerId()).add(position.getEntryId());
    }
}
