package ledgerstream.interop;

import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.security.SecureRandom;
import org.apache.bookkeeper.auth.AuthCallbacks;
import org.apache.bookkeeper.auth.AuthToken;
import org.apache.bookkeeper.auth.BookieAuthProvider;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.proto.BookieConnectionPeer;

/**
 * The bookie's side of an authentication in two rounds: the client sends any message, gets a challenge,
 * and responds with the SHA-256 of the secret and the challenge. The secret is a bookie setting.
 */
public final class ChallengeAuth implements BookieAuthProvider.Factory {
    private static final String SECRET_SETTING = "challengeAuthSecret";
    private static final int CHALLENGE_BYTES = 16;
    private static final byte[] WELCOME = "welcome".getBytes(StandardCharsets.UTF_8);
    private byte[] secret;

    @Override
    public void init(ServerConfiguration configuration) {
        secret = configuration.getString(SECRET_SETTING).getBytes(StandardCharsets.UTF_8);
    }

    @Override
    public String getPluginName() {
        return "ledgerstream.interop.ChallengeAuth";
    }

    @Override
    public BookieAuthProvider newProvider(
            BookieConnectionPeer peer, AuthCallbacks.GenericCallback<Void> done) {
        byte[] challenge = new byte[CHALLENGE_BYTES];
        new SecureRandom().nextBytes(challenge);
        return new BookieAuthProvider() {
            private boolean isChallenged;

            @Override
            public void process(AuthToken said, AuthCallbacks.GenericCallback<AuthToken> answer) {
                if (!isChallenged) {
                    isChallenged = true;
                    answer.operationComplete(BKException.Code.OK, AuthToken.wrap(challenge));
                } else if (MessageDigest.isEqual(said.getData(), expected(challenge))) {
                    done.operationComplete(BKException.Code.OK, null);
                    answer.operationComplete(BKException.Code.OK, AuthToken.wrap(WELCOME));
                } else {
                    done.operationComplete(BKException.Code.UnauthorizedAccessException, null);
                    answer.operationComplete(BKException.Code.UnauthorizedAccessException, null);
                }
            }
        };
    }

    private byte[] expected(byte[] challenge) {
        try {
            MessageDigest digest = MessageDigest.getInstance("SHA-256");
            digest.update(secret);
            return digest.digest(challenge);
        } catch (GeneralSecurityException impossible) {
            throw new IllegalStateException(impossible);
        }
    }
}
