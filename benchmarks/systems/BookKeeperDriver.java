import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Apache's client at the orders of a benchmark, as drivers.py describes them: each stream is a
 * ledger, whose id is in a file. The bookies hear every 10 ms how far a stream "tailed" is confirmed,
 * because otherwise a reader sees an entry only when the next one comes.
 */
public final class BookKeeperDriver {
    private static final int OUTSTANDING_MAX = 20_000;
    private static final int PATIENCE = 3;
    private static final byte[] PASSWORD = new byte[0];

    public static void main(String[] arguments) throws Exception {
        Path directory = Path.of(arguments[2]);
        if (arguments[0].equals("append")) {
            append(arguments[1], directory, Arrays.copyOfRange(arguments, 3, arguments.length));
        } else {
            follow(arguments[1], directory, arguments[3]);
        }
        System.exit(0);
    }

    private static BookKeeper client(String uri, int explicitLacMs) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(uri);
        configuration.setExplictLacInterval(explicitLacMs);
        return new BookKeeper(configuration);
    }

    private static void append(String uri, Path directory, String[] streams) throws Exception {
        Map<String, LedgerHandle> ledgers = new HashMap<>();
        for (String stream : streams) {
            BookKeeper client = client(uri, stream.startsWith("tailed") ? 10 : 0);
            LedgerHandle ledger =
                    client.createLedger(3, 3, 2, BookKeeper.DigestType.CRC32C, PASSWORD);
            Files.writeString(directory.resolve(stream + ".ledger"), "" + ledger.getId());
            ledgers.put(stream, ledger);
        }
        say("ready");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        double[] latenciesMs = new double[0];
        for (String line; (line = orders.readLine()) != null; ) {
            if (line.equals("report")) {
                report(latenciesMs);
                continue;
            }
            String[] words = line.split(" ");
            byte[] padding = new byte[Integer.parseInt(words[3])];
            new Random().nextBytes(padding);
            latenciesMs = atFixedRate(ledgers.get(words[0]), padding,
                    Integer.parseInt(words[2]), Integer.parseInt(words[1]));
            say("done " + latenciesMs.length);
        }
    }

    private static double[] atFixedRate(LedgerHandle ledger, byte[] padding, int count, int rate)
            throws Exception {
        double[] latenciesMs = new double[count];
        AtomicInteger answered = new AtomicInteger();
        Semaphore room = new Semaphore(OUTSTANDING_MAX);
        long started = System.nanoTime();
        long end = started + Math.max(1_000_000_000L, PATIENCE * 1_000_000_000L * count / rate);
        int sent = 0;
        for (; sent < count && System.nanoTime() < end; sent++) {
            long due = started + sent * 1_000_000_000L / rate;
            for (long now; (now = System.nanoTime()) < due; ) {
                LockSupport.parkNanos(due - now);
            }
            room.acquire();
            byte[] value = padding.clone();
            ByteBuffer.wrap(value).putDouble(System.nanoTime() / 1e9);
            ledger.asyncAddEntry(value, (code, handle, entry, context) -> {
                if (code != BKException.Code.OK) {
                    System.err.println("not added: " + BKException.getMessage(code));
                    System.exit(1);
                }
                latenciesMs[answered.getAndIncrement()] = (System.nanoTime() - due) / 1e6;
                room.release();
            }, null);
        }
        room.acquire(OUTSTANDING_MAX);
        return Arrays.copyOf(latenciesMs, sent);
    }

    private static void follow(String uri, Path directory, String stream) throws Exception {
        long id = Long.parseLong(Files.readString(directory.resolve(stream + ".ledger")));
        ReadHandle ledger = client(uri, 0).newOpenLedgerOp().withLedgerId(id)
                .withDigestType(DigestType.CRC32C).withPassword(PASSWORD).withRecovery(false)
                .execute().get();
        say("ready");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        long next = 0;
        double[] latenciesMs = new double[0];
        for (String line; (line = orders.readLine()) != null; ) {
            if (line.equals("report")) {
                report(latenciesMs);
                continue;
            }
            latenciesMs = new double[Integer.parseInt(line)];
            for (int seen = 0; seen < latenciesMs.length; ) {
                long last = Math.min(ledger.getLastAddConfirmed(),
                        next + Math.min(1000, latenciesMs.length - seen) - 1);
                if (last >= next) {
                    try (LedgerEntries entries = ledger.read(next, last)) {
                        for (LedgerEntry entry : entries) {
                            latenciesMs[seen++] = age(entry);
                        }
                    }
                    next = last + 1;
                    continue;
                }
                try (LastConfirmedAndEntry found =
                        ledger.readLastAddConfirmedAndEntryAsync(next, 1000, false).get()) {
                    if (found.hasEntry()) {
                        latenciesMs[seen++] = age(found.getEntry());
                        next++;
                    }
                }
            }
            say("done " + latenciesMs.length);
        }
    }

    private static double age(LedgerEntry entry) {
        return System.nanoTime() / 1e6 - entry.getEntryNioBuffer().getDouble() * 1e3;
    }

    private static void say(String text) {
        System.out.println(text);
        System.out.flush();
    }

    private static void report(double[] latenciesMs) {
        StringBuilder text = new StringBuilder("[");
        for (int i = 0; i < latenciesMs.length; i++) {
            text.append(i == 0 ? "" : ", ").append(Math.round(latenciesMs[i] * 1e3) / 1e3);
        }
        say(text.append("]").toString());
    }
}
