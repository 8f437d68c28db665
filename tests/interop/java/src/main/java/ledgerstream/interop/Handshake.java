package ledgerstream.interop;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.auth.AuthCallbacks;
import org.apache.bookkeeper.auth.AuthToken;
import org.apache.bookkeeper.auth.ClientAuthProvider;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.proto.ClientConnectionPeer;

/**
 * A client's side of authentication, for bookies that do not require it. The setting {@code handshake}
 * determines its behaviour: "patient" begins and waits, "twice" sends two first messages, "refusing"
 * fails by itself.
 */
public final class Handshake implements ClientAuthProvider.Factory {
    private static final AtomicLong SENT = new AtomicLong();
    private static final AtomicLong ANSWERED = new AtomicLong();
    private static final AtomicLong CONNECTIONS = new AtomicLong();
    private String behaviour = "patient";

    static ObjectNode counts(Request request) {
        return Request.nothing()
                .put("connections", CONNECTIONS.get())
                .put("sent", SENT.get())
                .put("answered", ANSWERED.get());
    }

    @Override
    public void init(ClientConfiguration configuration) {
        behaviour = configuration.getString("handshake", behaviour);
    }

    @Override
    public String getPluginName() {
        return "ledgerstream-handshake";
    }

    @Override
    public ClientAuthProvider newProvider(
            ClientConnectionPeer connection, AuthCallbacks.GenericCallback<Void> complete) {
        CONNECTIONS.incrementAndGet();
        return new Provider(behaviour, complete);
    }

    private static final class Provider implements ClientAuthProvider {
        private final String behaviour;
        private final AuthCallbacks.GenericCallback<Void> complete;

        Provider(String behaviour, AuthCallbacks.GenericCallback<Void> complete) {
            this.behaviour = behaviour;
            this.complete = complete;
        }

        @Override
        public void init(AuthCallbacks.GenericCallback<AuthToken> send) {
            switch (behaviour) {
                case "patient":
                    say(send, "who are you?");
                    break;
                case "twice":
                    say(send, "who are you?");
                    say(send, "who are you, I said?");
                    break;
                case "refusing":
                    complete.operationComplete(BKException.Code.UnauthorizedAccessException, null);
                    break;
                default:
                    throw new IllegalArgumentException(behaviour);
            }
        }

        private static void say(AuthCallbacks.GenericCallback<AuthToken> send, String words) {
            SENT.incrementAndGet();
            send.operationComplete(
                    BKException.Code.OK, AuthToken.wrap(words.getBytes(StandardCharsets.UTF_8)));
        }

        /** Called only by a bookie with a plugin of this name. */
        @Override
        public void process(AuthToken answer, AuthCallbacks.GenericCallback<AuthToken> send) {
            ANSWERED.incrementAndGet();
            complete.operationComplete(BKException.Code.OK, null);
        }
    }
}
