package compat;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;

/** The running clients of this program, by the names that the tests give them; intervals short, for quick tests. */
final class Clients {
    private static final int HEARTBEAT_MS = 2_000;
    private static final int ROUTE_MS = 2_000;
    private static final int PERSIST_MS = 500;
    /** Longer than the 3 s of the client: a shared machine may stand still for as long. */
    private static final int TIMEOUT_MS = 20_000;

    private final String nameserver;
    private DefaultMQProducer producer;
    private final Map<String, DefaultMQPullConsumer> pullers = new LinkedHashMap<>();
    final Map<String, DefaultMQPushConsumer> pushers = new LinkedHashMap<>();
    final Map<String, DefaultLitePullConsumer> lites = new LinkedHashMap<>();
    private int made;

    Clients(String nameserver) {
        this.nameserver = nameserver;
    }

    /** A client id of its own for each, so that two consumers of one program are two members. */
    void configure(ClientConfig client) {
        client.setNamesrvAddr(nameserver);
        client.setInstanceName(ProcessHandle.current().pid() + "-" + made++);
        client.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        client.setPollNameServerInterval(ROUTE_MS);
        client.setPersistConsumerOffsetInterval(PERSIST_MS);
        client.setMqClientApiTimeout(TIMEOUT_MS);
    }

    DefaultMQProducer producer() throws Exception {
        if (producer == null) {
            producer = new DefaultMQProducer("CompatProducers");
            configure(producer);
            producer.setSendMsgTimeout(TIMEOUT_MS);
            producer.start();
        }
        return producer;
    }

    DefaultMQPullConsumer puller(String group) throws Exception {
        DefaultMQPullConsumer puller = pullers.get(group);
        if (puller == null) {
            puller = new DefaultMQPullConsumer(group);
            configure(puller);
            puller.start();
            pullers.put(group, puller);
        }
        return puller;
    }

    void shutdown() {
        List<Runnable> ends = new ArrayList<>();
        pushers.values().forEach(client -> ends.add(client::shutdown));
        lites.values().forEach(client -> ends.add(client::shutdown));
        pullers.values().forEach(client -> ends.add(client::shutdown));
        if (producer != null) {
            ends.add(producer::shutdown);
        }
        ends.forEach(Runnable::run);
    }
}
