import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Lite topics of the topic Chats, with RocketMQ's Java SDK for gRPC 5.2.0. Arguments: operation, endpoints.
 *
 * <p>A message whose body begins with `once` fails at its first delivery, one with `poison` at each. `sessions` prints
 * what the consumers of the groups fifo, plain and exclusive got, as group:body. `wait` prints READY and what a
 * consumer of the lite topic a gets, until `end`.
 */
public final class Lites {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final BlockingQueue<String> RECEIVED = new LinkedBlockingQueue<>();
    static final Map<String, List<Integer>> ATTEMPTS = new ConcurrentHashMap<>();
    static ClientConfiguration configuration;
    static Producer producer;

    public static void main(String[] arguments) throws Exception {
        configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[1]).enableSsl(false).build();
        if (arguments[0].equals("wait")) {
            consumer("fifo", "fifo").subscribeLite("a");
            System.out.println("READY");
            String body;
            do {
                body = RECEIVED.take();
                System.out.println("RECEIVED " + body);
            } while (!body.equals("fifo:end"));
        } else {
            producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics("Chats").build();
            refused();
            sessions();
        }
        System.exit(0);
    }

    static void refused() throws Exception {
        try {
            send("a b", "x");
        } catch (Exception error) {
            System.out.println("REFUSED");
        }
    }

    static void sessions() throws Exception {
        LitePushConsumer fifo = consumer("fifo", "fifo");
        fifo.subscribeLite("a");
        fifo.subscribeLite("b");
        send("a", "a0", "once-a1", "a2");
        expect("fifo:a0", "fifo:once-a1", "fifo:once-a1", "fifo:a2");
        send("b", "poison", "b1");
        expect("fifo:poison", "fifo:poison", "fifo:poison", "fifo:b1");
        send("b", "b2");
        expect("fifo:b2");
        consumer("plain", "plain").subscribeLite("c");
        send("c", "once-c0");
        expect("plain:once-c0", "plain:once-c0");
        System.out.println("ATTEMPTS " + ATTEMPTS.get("plain:once-c0"));
        LitePushConsumer first = consumer("exclusive", "first");
        LitePushConsumer second = consumer("exclusive", "second");
        first.subscribeLite("x");
        second.subscribeLite("x");
        while (!first.getLiteTopicSet().isEmpty()) {
            Thread.sleep(10);
        }
        System.out.println("NOTIFIED");
        send("x", "x0");
        expect("second:x0");
        second.unsubscribeLite("x");
        send("x", "x1");
        first.subscribeLite("x");
        expect("first:x1");
        System.out.println("DONE");
    }

    static void expect(String... wanted) throws Exception {
        for (String each : wanted) {
            String got = RECEIVED.take();
            System.out.println((got.equals(each) ? "GOT " : "WANTED " + each + ", GOT ") + got);
        }
    }

    static LitePushConsumer consumer(String group, String name) throws Exception {
        return PROVIDER.newLitePushConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(group)
            .bindTopic("Chats")
            .setMessageListener(view -> consume(name, view))
            .build();
    }

    static ConsumeResult consume(String name, MessageView view) {
        String body = StandardCharsets.UTF_8.decode(view.getBody().duplicate()).toString();
        String received = name + ":" + body;
        List<Integer> attempts = ATTEMPTS.computeIfAbsent(received, key -> new CopyOnWriteArrayList<>());
        attempts.add(view.getDeliveryAttempt());
        RECEIVED.add(received);
        boolean fails = body.startsWith("poison") || body.startsWith("once") && attempts.size() == 1;
        return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    }

    static void send(String liteTopic, String... bodies) throws Exception {
        for (String body : bodies) {
            producer.send(PROVIDER.newMessageBuilder().setTopic("Chats").setLiteTopic(liteTopic)
                .setBody(body.getBytes(StandardCharsets.UTF_8)).build());
        }
    }
}
