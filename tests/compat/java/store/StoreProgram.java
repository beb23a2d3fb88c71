package compat;

import java.io.FileReader;
import java.io.Reader;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Opens a store directory with RocketMQ's DefaultMessageStore, without a broker: reads everything, optionally puts more
 * messages, and shuts down cleanly.
 *
 * <p>Arguments: store=DIR conf=broker.conf; dump=FILE and keys=FILE to dump the contents in the format of the fixtures'
 * expected files; put=COUNT to put further messages (see {@link Puts}); dumpAfter=FILE and keysAfter=FILE.
 */
public final class StoreProgram {
    private static final long DISPATCH_WAIT_MS = 600_000;

    private StoreProgram() {
    }

    public static void main(String[] args) {
        try {
            run(new Arguments(args));
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(Arguments arguments) throws Exception {
        DefaultMessageStore store = open(arguments.text("store"), arguments.text("conf"));
        StoreDump dump = new StoreDump(store);
        if (!arguments.text("dump", "").isEmpty()) {
            dump.write(arguments.text("dump"), arguments.text("keys"));
        }
        int count = arguments.number("put", 0);
        if (count > 0) {
            new Puts(store).put(count);
            waitForDispatch(store);
            dump.write(arguments.text("dumpAfter"), arguments.text("keysAfter"));
        }
        store.shutdown();
    }

    private static DefaultMessageStore open(String root, String conf) throws Exception {
        Properties properties = new Properties();
        try (Reader reader = new FileReader(conf)) {
            properties.load(reader);
        }
        MessageStoreConfig config = new MessageStoreConfig();
        BrokerConfig brokerConfig = new BrokerConfig();
        MixAll.properties2Object(properties, config);
        MixAll.properties2Object(properties, brokerConfig);
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + "/commitlog");
        config.setHaListenPort(0);
        DefaultMessageStore store = new DefaultMessageStore(
            config,
            new BrokerStatsManager(brokerConfig.getBrokerClusterName(), false),
            (topic, queueId, logicOffset, tagsCode, msgStoreTime, filterBitMap, properties1) -> { },
            brokerConfig,
            new ConcurrentHashMap<>());
        if (!store.load()) {
            throw new IllegalStateException("DefaultMessageStore.load() refused " + root);
        }
        store.start();
        waitForDispatch(store);
        return store;
    }

    private static void waitForDispatch(DefaultMessageStore store) throws InterruptedException {
        long deadline = System.currentTimeMillis() + DISPATCH_WAIT_MS;
        while (store.dispatchBehindBytes() > 0) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException(store.dispatchBehindBytes() + " bytes are still not dispatched");
            }
            Thread.sleep(10);
        }
    }
}
