package ledgerstream.interop;

import org.apache.bookkeeper.auth.AuthCallbacks;
import org.apache.bookkeeper.auth.AuthToken;
import org.apache.bookkeeper.auth.ClientAuthProvider;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.proto.ClientConnectionPeer;

/** A client that first sends a token; a bookie without authentication accepts it. */
public final class TokenAuth implements ClientAuthProvider.Factory {
    @Override
    public String getPluginName() {
        return "ledgerstream.interop.TokenAuth";
    }

    @Override
    public void init(ClientConfiguration configuration) {}

    @Override
    public void close() {}

    @Override
    public ClientAuthProvider newProvider(
            ClientConnectionPeer peer, AuthCallbacks.GenericCallback<Void> done) {
        return new ClientAuthProvider() {
            @Override
            public void init(AuthCallbacks.GenericCallback<AuthToken> send) {
                send.operationComplete(BKException.Code.OK, AuthToken.wrap(new byte[] {1, 2, 3}));
            }

            @Override
            public void process(AuthToken answer, AuthCallbacks.GenericCallback<AuthToken> send) {
                done.operationComplete(BKException.Code.OK, null);
            }

            @Override
            public void close() {}
        };
    }
}
