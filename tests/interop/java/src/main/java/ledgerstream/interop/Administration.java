package ledgerstream.interop;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import org.apache.bookkeeper.bookie.BookieShell;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerMetadataBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ListLedgersResult;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.discover.BookieServiceInfo;
import org.apache.bookkeeper.meta.LedgerMetadataSerDe;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.util.LedgerIdFormatter;
import org.apache.bookkeeper.util.StringEntryFormatter;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;

/** Metadata, the registry, and Apache's own administration tools. */
final class Administration {
    private final Clients clients;
    private final Object shellLock = new Object();

    Administration(Clients clients) {
        this.clients = clients;
    }

    void offer(Driver driver) {
        driver.blocking("metadata", this::metadata);
        driver.blocking("delete", this::delete);
        driver.blocking("list", this::list);
        driver.blocking("bookies", this::bookies);
        driver.blocking("bookie_service", this::bookieService);
        driver.blocking("bookie_info", this::bookieInfo);
        driver.blocking("entries_of_ledger", this::entriesOfLedger);
        driver.blocking("recover_bookie", this::recoverBookie);
        driver.blocking("init_cluster", this::initCluster);
        driver.blocking("serde_encode", this::serdeEncode);
        driver.blocking("serde_decode", this::serdeDecode);
        driver.blocking("shell", this::shell);
        driver.blocking("handshakes", Handshake::counts);
    }

    private ObjectNode metadata(Request request) throws Exception {
        return describe(
                Driver.get(clients.client(request).getLedgerMetadata(request.number("ledger"))));
    }

    private ObjectNode delete(Request request) throws Exception {
        Driver.get(
                clients.client(request)
                        .newDeleteLedgerOp()
                        .withLedgerId(request.number("ledger"))
                        .execute());
        return Request.nothing();
    }

    private ObjectNode list(Request request) throws Exception {
        ArrayNode ids = Driver.JSON.createArrayNode();
        try (ListLedgersResult result =
                Driver.get(clients.client(request).newListLedgersOp().execute())) {
            result.toIterable().forEach(id -> ids.add((long) id));
        }
        ObjectNode answer = Request.nothing();
        answer.set("ledgers", ids);
        return answer;
    }

    private ObjectNode bookies(Request request) throws Exception {
        try (BookKeeperAdmin admin = new BookKeeperAdmin(clients.client(request))) {
            ObjectNode answer = Request.nothing();
            answer.set("available", ids(admin.getAvailableBookies()));
            answer.set("read_only", ids(admin.getReadOnlyBookies()));
            answer.set("all", ids(admin.getAllBookies()));
            return answer;
        }
    }

    private static ArrayNode ids(Collection<BookieId> bookies) {
        ArrayNode ids = Driver.JSON.createArrayNode();
        bookies.stream().map(BookieId::toString).sorted().forEach(ids::add);
        return ids;
    }

    /** Returns the contents of a bookie's registration. */
    private ObjectNode bookieService(Request request) throws Exception {
        try (BookKeeperAdmin admin = new BookKeeperAdmin(clients.client(request))) {
            BookieServiceInfo info =
                    admin.getBookieServiceInfo(BookieId.parse(request.text("bookie")));
            ObjectNode answer = Request.nothing();
            ObjectNode properties = answer.putObject("properties");
            info.getProperties().forEach(properties::put);
            ArrayNode endpoints = answer.putArray("endpoints");
            for (BookieServiceInfo.Endpoint endpoint : info.getEndpoints()) {
                endpoints
                        .addObject()
                        .put("id", endpoint.getId())
                        .put("host", endpoint.getHost())
                        .put("port", endpoint.getPort())
                        .put("protocol", endpoint.getProtocol());
            }
            return answer;
        }
    }

    private ObjectNode bookieInfo(Request request) throws Exception {
        ObjectNode answer = Request.nothing();
        ObjectNode byBookie = answer.putObject("bookies");
        clients.client(request)
                .getBookieInfo()
                .forEach(
                        (bookie, info) ->
                                byBookie.putObject(bookie.toString())
                                        .put("total", info.getTotalDiskSpace())
                                        .put("free", info.getFreeDiskSpace()));
        return answer;
    }

    private ObjectNode entriesOfLedger(Request request) throws Exception {
        try (BookKeeperAdmin admin = new BookKeeperAdmin(clients.client(request))) {
            var found =
                    Driver.get(
                            admin.asyncGetListOfEntriesOfLedger(
                                    BookieId.parse(request.text("bookie")),
                                    request.number("ledger")));
            ObjectNode answer = Request.nothing();
            ArrayNode ids = answer.putArray("entries");
            for (long id = 0; id <= request.number("last"); id++) {
                if (found.isEntryAvailable(id)) {
                    ids.add(id);
                }
            }
            return answer.put("total", found.getTotalNumOfAvailableEntries());
        }
    }

    private ObjectNode recoverBookie(Request request) throws Exception {
        try (BookKeeperAdmin admin = new BookKeeperAdmin(clients.client(request))) {
            admin.recoverBookieData(BookieId.parse(request.text("bookie")));
        }
        return Request.nothing();
    }

    private ObjectNode initCluster(Request request) throws Exception {
        ServerConfiguration configuration = server(request);
        makeParents(URI.create(configuration.getMetadataServiceUri().replace(';', ',')));
        return Request.nothing().put("made", BookKeeperAdmin.initNewCluster(configuration));
    }

    /** Creates the path to the ledgers root, which Apache's command does not create. */
    private static void makeParents(URI uri) throws Exception {
        CountDownLatch connected = new CountDownLatch(1);
        try (ZooKeeper zookeeper =
                new ZooKeeper(uri.getAuthority(), 10_000, event -> connected.countDown())) {
            connected.await();
            String path = uri.getPath();
            for (int end = path.indexOf('/', 1); end > 0; end = path.indexOf('/', end + 1)) {
                try {
                    zookeeper.create(
                            path.substring(0, end),
                            new byte[0],
                            ZooDefs.Ids.OPEN_ACL_UNSAFE,
                            CreateMode.PERSISTENT);
                } catch (KeeperException.NodeExistsException there) {
                    continue;
                }
            }
        }
    }

    private static ServerConfiguration server(Request request) {
        ServerConfiguration configuration = new ServerConfiguration();
        request.textByName("settings").forEach(configuration::setProperty);
        return configuration;
    }

    private static ObjectNode describe(LedgerMetadata metadata) {
        ObjectNode answer =
                Request.nothing()
                        .put("ledger", metadata.getLedgerId())
                        .put("ensemble_size", metadata.getEnsembleSize())
                        .put("write_quorum", metadata.getWriteQuorumSize())
                        .put("ack_quorum", metadata.getAckQuorumSize())
                        .put("state", metadata.getState().name())
                        .put("last", metadata.getLastEntryId())
                        .put("length", metadata.getLength())
                        .put("closed", metadata.isClosed())
                        .put("has_password", metadata.hasPassword())
                        .put("created_ms", metadata.getCtime())
                        .put("c_token", metadata.getCToken())
                        .put("format_version", metadata.getMetadataFormatVersion());
        if (metadata.hasPassword()) {
            answer.put("digest", String.valueOf(metadata.getDigestType()));
            answer.put("password", Request.base64(metadata.getPassword()));
        }
        ArrayNode fragments = answer.putArray("fragments");
        for (Map.Entry<Long, ? extends List<BookieId>> entry :
                metadata.getAllEnsembles().entrySet()) {
            ObjectNode fragment = fragments.addObject().put("first", (long) entry.getKey());
            ArrayNode ids = fragment.putArray("bookies");
            entry.getValue().forEach(bookie -> ids.add(bookie.toString()));
        }
        ObjectNode custom = answer.putObject("custom");
        metadata.getCustomMetadata()
                .forEach((name, value) -> custom.put(name, Request.base64(value)));
        return answer;
    }

    /** Builds metadata from arguments with the names of the response of `metadata`. */
    private ObjectNode serdeEncode(Request request) throws Exception {
        LedgerMetadataBuilder builder =
                LedgerMetadataBuilder.create()
                        .withId(request.number("ledger"))
                        .withMetadataFormatVersion(request.small("format_version", 3))
                        .withEnsembleSize(request.small("ensemble_size"))
                        .withWriteQuorumSize(request.small("write_quorum"))
                        .withAckQuorumSize(request.small("ack_quorum"))
                        .withCustomMetadata(request.bytesByName("custom"));
        if (request.has("digest")) {
            builder = builder.withDigestType(DigestType.valueOf(request.text("digest")));
            builder = builder.withPassword(Clients.password(request));
        }
        for (var fragment : request.node("fragments")) {
            List<BookieId> bookies = new ArrayList<>();
            fragment.get("bookies").forEach(id -> bookies.add(BookieId.parse(id.asText())));
            builder = builder.newEnsembleEntry(fragment.get("first").asLong(), bookies);
        }
        switch (request.text("state", "OPEN")) {
            case "CLOSED":
                builder =
                        builder.withClosedState()
                                .withLastEntryId(request.number("last"))
                                .withLength(request.number("length"));
                break;
            case "IN_RECOVERY":
                builder = builder.withInRecoveryState();
                break;
            default:
                break;
        }
        if (request.has("created_ms")) {
            builder =
                    builder.withCreationTime(request.number("created_ms"))
                            .storingCreationTime(true);
        }
        if (request.has("c_token")) {
            builder = builder.withCToken(request.number("c_token"));
        }
        byte[] data = new LedgerMetadataSerDe().serialize(builder.build());
        return Request.nothing().put("data", Request.base64(data));
    }

    private ObjectNode serdeDecode(Request request) throws Exception {
        Optional<Long> created =
                request.has("node_created_ms")
                        ? Optional.of(request.number("node_created_ms"))
                        : Optional.empty();
        return describe(
                new LedgerMetadataSerDe()
                        .parseConfig(request.bytes("data"), request.number("ledger"), created));
    }

    /** Runs a command of the shell and returns its output; one command at a time. */
    private ObjectNode shell(Request request) throws Exception {
        List<String> arguments = new ArrayList<>();
        request.node("arguments").forEach(argument -> arguments.add(argument.asText()));
        synchronized (shellLock) {
            PrintStream before = System.out;
            ByteArrayOutputStream said = new ByteArrayOutputStream();
            try (PrintStream capture = new PrintStream(said, true, StandardCharsets.UTF_8)) {
                System.setOut(capture);
                BookieShell shell =
                        new BookieShell(
                                new LedgerIdFormatter.LongLedgerIdFormatter(),
                                new StringEntryFormatter());
                shell.setConf(server(request));
                int code = shell.run(arguments.toArray(new String[0]));
                capture.flush();
                return Request.nothing()
                        .put("code", code)
                        .put("output", said.toString(StandardCharsets.UTF_8));
            } finally {
                System.setOut(before);
            }
        }
    }
}
