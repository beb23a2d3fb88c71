package compat;

import java.util.Arrays;
import java.util.Collection;
import java.util.Map;

/** Latencies measured by one thread; all are kept, so percentiles are exact. */
final class Latencies {
    private long[] timesNs = new long[1 << 16];
    private int count;

    void add(long timeNs) {
        if (count == timesNs.length) {
            timesNs = Arrays.copyOf(timesNs, count * 2);
        }
        timesNs[count++] = timeNs;
    }

    int count() {
        return count;
    }

    /** Puts p50Ms, p99Ms, meanMs and maxMs of all latencies into `figures`. */
    static void describe(Collection<Latencies> parts, Map<String, Object> figures) {
        long[] all = new long[parts.stream().mapToInt(Latencies::count).sum()];
        int at = 0;
        for (Latencies part : parts) {
            System.arraycopy(part.timesNs, 0, all, at, part.count);
            at += part.count;
        }
        Arrays.sort(all);
        figures.put("p50Ms", milliseconds(all, 0.50));
        figures.put("p99Ms", milliseconds(all, 0.99));
        figures.put("meanMs", Arrays.stream(all).average().orElse(0) / 1e6);
        figures.put("maxMs", milliseconds(all, 1.0));
    }

    private static double milliseconds(long[] sortedNs, double share) {
        if (sortedNs.length == 0) {
            return 0;
        }
        int rank = (int) Math.ceil(share * sortedNs.length);
        return sortedNs[Math.max(0, rank - 1)] / 1e6;
    }
}
