package ledgerstream.interop;

import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;

/** Computes the bytes of an entry from seed and number, as `payload` in java_client.py does. */
final class Payload {
    private Payload() {}

    /** Returns SHA-256 of (seed, number), as big-endian longs, repeated up to {@code size} bytes. */
    static byte[] of(long seed, long number, int size) {
        byte[] block;
        try {
            ByteBuffer key = ByteBuffer.allocate(16).putLong(seed).putLong(number);
            block = MessageDigest.getInstance("SHA-256").digest(key.array());
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
        byte[] payload = new byte[size];
        int filled = Math.min(size, block.length);
        System.arraycopy(block, 0, payload, 0, filled);
        while (filled < size) {
            int more = Math.min(filled, size - filled);
            System.arraycopy(payload, 0, payload, filled, more);
            filled += more;
        }
        return payload;
    }
}
