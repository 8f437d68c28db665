package ledgerstream.interop;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.bookkeeper.common.component.LifecycleComponentStack;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.server.EmbeddedServer;
import org.apache.bookkeeper.server.conf.BookieConfiguration;

/** Apache bookies inside this process, where several share one JVM. */
final class Hosting {
    private final Map<String, LifecycleComponentStack> running = new ConcurrentHashMap<>();

    void offer(Driver driver) {
        driver.blocking("start_bookie", this::start);
        driver.blocking("stop_bookie", this::stop);
    }

    private ObjectNode start(Request request) throws Exception {
        ServerConfiguration configuration = new ServerConfiguration();
        request.textByName("settings").forEach(configuration::setProperty);
        configuration.validate();
        EmbeddedServer server =
                EmbeddedServer.builder(new BookieConfiguration(configuration)).build();
        LifecycleComponentStack stack = server.getLifecycleComponentStack();
        stack.start();
        running.put(request.text("name"), stack);
        return Request.nothing();
    }

    private ObjectNode stop(Request request) throws Exception {
        LifecycleComponentStack stack = running.remove(request.text("name"));
        if (stack == null) {
            throw new IllegalArgumentException("there is no bookie " + request.text("name"));
        }
        stack.close();
        return Request.nothing();
    }
}
