package ledgerstream.interop;

import io.netty.util.HashedWheelTimer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import org.apache.bookkeeper.client.BKException.BKNotEnoughBookiesException;
import org.apache.bookkeeper.client.BookiesHealthInfo;
import org.apache.bookkeeper.client.DistributionSchedule;
import org.apache.bookkeeper.client.EnsemblePlacementPolicy;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.feature.FeatureProvider;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.net.DNSToSwitchMapping;
import org.apache.bookkeeper.proto.BookieAddressResolver;
import org.apache.bookkeeper.stats.StatsLogger;

/**
 * Selects the bookies that the ledger's custom metadata names, in that order, so that a test controls
 * the placement. Ledgers without this metadata get any bookies.
 */
public final class ChosenBookies implements EnsemblePlacementPolicy {
    private static final String KEY = "interop-bookies";
    private volatile Set<BookieId> known = Set.of();

    @Override
    public EnsemblePlacementPolicy initialize(
            ClientConfiguration configuration,
            Optional<DNSToSwitchMapping> resolver,
            HashedWheelTimer timer,
            FeatureProvider features,
            StatsLogger statistics,
            BookieAddressResolver addresses) {
        return this;
    }

    @Override
    public void uninitalize() {}

    @Override
    public Set<BookieId> onClusterChanged(Set<BookieId> writable, Set<BookieId> readOnly) {
        Set<BookieId> gone = new HashSet<>(known);
        gone.removeAll(writable);
        gone.removeAll(readOnly);
        known = Set.copyOf(writable);
        return gone;
    }

    @Override
    public PlacementResult<List<BookieId>> newEnsemble(
            int size,
            int writeQuorum,
            int ackQuorum,
            Map<String, byte[]> custom,
            Set<BookieId> excluded)
            throws BKNotEnoughBookiesException {
        List<BookieId> chosen = new ArrayList<>();
        for (BookieId bookie : candidates(custom)) {
            if (chosen.size() < size && !excluded.contains(bookie)) {
                chosen.add(bookie);
            }
        }
        if (chosen.size() < size) {
            throw new BKNotEnoughBookiesException();
        }
        return PlacementResult.of(chosen, PlacementPolicyAdherence.MEETS_STRICT);
    }

    private List<BookieId> candidates(Map<String, byte[]> custom) {
        byte[] named = custom == null ? null : custom.get(KEY);
        List<BookieId> candidates = new ArrayList<>();
        if (named == null) {
            Set<String> sorted = new TreeSet<>();
            known.forEach(bookie -> sorted.add(bookie.toString()));
            sorted.forEach(name -> candidates.add(BookieId.parse(name)));
            return candidates;
        }
        for (String name : new String(named, StandardCharsets.UTF_8).split(",")) {
            candidates.add(BookieId.parse(name));
        }
        return candidates;
    }

    @Override
    public PlacementResult<BookieId> replaceBookie(
            int size,
            int writeQuorum,
            int ackQuorum,
            Map<String, byte[]> custom,
            List<BookieId> ensemble,
            BookieId replaced,
            Set<BookieId> excluded)
            throws BKNotEnoughBookiesException {
        Set<BookieId> taken = new HashSet<>(excluded);
        taken.addAll(ensemble);
        taken.add(replaced);
        BookieId chosen = newEnsemble(1, 1, 1, custom, taken).getResult().get(0);
        return PlacementResult.of(chosen, PlacementPolicyAdherence.MEETS_STRICT);
    }

    @Override
    public void registerSlowBookie(BookieId bookie, long entry) {}

    @Override
    public DistributionSchedule.WriteSet reorderReadSequence(
            List<BookieId> ensemble,
            BookiesHealthInfo health,
            DistributionSchedule.WriteSet writeSet) {
        return writeSet;
    }

    @Override
    public DistributionSchedule.WriteSet reorderReadLACSequence(
            List<BookieId> ensemble,
            BookiesHealthInfo health,
            DistributionSchedule.WriteSet writeSet) {
        writeSet.addMissingIndices(ensemble.size());
        return writeSet;
    }

    @Override
    public PlacementPolicyAdherence isEnsembleAdheringToPlacementPolicy(
            List<BookieId> ensemble, int writeQuorum, int ackQuorum) {
        return PlacementPolicyAdherence.MEETS_STRICT;
    }
}
