package ledgerstream.interop;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.Handle;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** The clients and open ledgers of this process, by number. */
final class Clients {
    private final AtomicLong numbers = new AtomicLong();
    private final Map<Long, BookKeeper> clients = new ConcurrentHashMap<>();
    private final Map<Long, ClientConfiguration> settings = new ConcurrentHashMap<>();
    private final Map<Long, Handle> handles = new ConcurrentHashMap<>();

    long open(Map<String, String> given) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        given.forEach(configuration::setProperty);
        BookKeeper client = new BookKeeper(configuration);
        long number = numbers.incrementAndGet();
        clients.put(number, client);
        settings.put(number, configuration);
        return number;
    }

    void close(long number) throws Exception {
        settings.remove(number);
        BookKeeper client = clients.remove(number);
        if (client != null) {
            client.close();
        }
    }

    BookKeeper client(Request request) {
        return known(clients, request.number("client"), "client");
    }

    ClientConfiguration configuration(Request request) {
        return known(settings, request.number("client"), "client");
    }

    long keep(Handle handle) {
        long number = numbers.incrementAndGet();
        handles.put(number, handle);
        return number;
    }

    Handle forget(Request request) {
        Handle handle = handle(request);
        handles.remove(request.number("handle"));
        return handle;
    }

    Handle handle(Request request) {
        return known(handles, request.number("handle"), "handle");
    }

    ReadHandle reader(Request request) {
        return (ReadHandle) handle(request);
    }

    WriteHandle writer(Request request) {
        return (WriteHandle) handle(request);
    }

    static DigestType digest(Request request) {
        return DigestType.valueOf(request.text("digest", "CRC32C"));
    }

    static byte[] password(Request request) {
        return request.bytes("password", new byte[0]);
    }

    private static <T> T known(Map<Long, T> things, long number, String kind) {
        T thing = things.get(number);
        if (thing == null) {
            throw new IllegalArgumentException("there is no " + kind + " " + number);
        }
        return thing;
    }
}
