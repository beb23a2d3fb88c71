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
import org.apache.rocketmq.remoting.RPCHook;

/** The running clients, by the names that the tests give them. Their intervals are short for quick tests. */
final class Clients {
    private static final int HEARTBEAT_MS = 2_000;
    private static final int ROUTE_MS = Integer.getInteger("compat.routeMs", 2_000);
    private static final int PERSIST_MS = 500;
    /** Longer than the client's default of 3 s, because a shared machine may stall that long. */
    private static final int TIMEOUT_MS = Integer.getInteger("compat.timeoutMs", 20_000);

    private final String nameserver;
    private DefaultMQProducer producer;
    private final Map<String, DefaultMQPullConsumer> pullers = new LinkedHashMap<>();
    final Map<String, DefaultMQPushConsumer> pushers = new LinkedHashMap<>();
    final Map<String, DefaultLitePullConsumer> lites = new LinkedHashMap<>();
    private int clientCount;

    Clients(String nameserver) {
        this.nameserver = nameserver;
    }

    /** Gives each client its own client id, so that two consumers of this program are two members of a group. */
    void configure(ClientConfig client) {
        client.setNamesrvAddr(nameserver);
        client.setInstanceName(ProcessHandle.current().pid() + "-" + clientCount++);
        client.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        client.setPollNameServerInterval(ROUTE_MS);
        client.setPersistConsumerOffsetInterval(PERSIST_MS);
        client.setMqClientApiTimeout(TIMEOUT_MS);
        if (System.getProperty("compat.namespace") != null) {
            client.setNamespace(System.getProperty("compat.namespace"));
        }
    }

    /** RocketMQ's hook that signs requests with the keys of system properties; null without them. */
    static RPCHook signing() throws Exception {
        String accessKey = System.getProperty("compat.accessKey");
        if (accessKey == null) {
            return null;
        }
        // By reflection, because 4.9.8 has these classes in a jar that is not used here.
        Class<?> credentials = Class.forName("org.apache.rocketmq.acl.common.SessionCredentials");
        Object keys = credentials.getConstructor(String.class, String.class)
            .newInstance(accessKey, System.getProperty("compat.secretKey"));
        return (RPCHook) Class.forName("org.apache.rocketmq.acl.common.AclClientRPCHook")
            .getConstructor(credentials).newInstance(keys);
    }

    DefaultMQProducer producer() throws Exception {
        if (producer == null) {
            producer = new DefaultMQProducer("CompatProducers", signing());
            configure(producer);
            producer.setSendMsgTimeout(TIMEOUT_MS);
            producer.start();
        }
        return producer;
    }

    DefaultMQPullConsumer puller(String group) throws Exception {
        DefaultMQPullConsumer puller = pullers.get(group);
        if (puller == null) {
            puller = new DefaultMQPullConsumer(group, signing());
            configure(puller);
            puller.start();
            pullers.put(group, puller);
        }
        return puller;
    }

    void shutdown() {
        List<Runnable> shutdowns = new ArrayList<>();
        pushers.values().forEach(client -> shutdowns.add(client::shutdown));
        lites.values().forEach(client -> shutdowns.add(client::shutdown));
        pullers.values().forEach(client -> shutdowns.add(client::shutdown));
        if (producer != null) {
            shutdowns.add(producer::shutdown);
        }
        shutdowns.forEach(Runnable::run);
    }
}
