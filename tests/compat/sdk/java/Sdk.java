import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * RocketMQ's Java SDK for gRPC. Arguments: operation, endpoints, access key, secret key (both may be empty).
 *
 * <p>`send` sends messages of all types and prints SENT; `push` and `simple` print READY, receive COUNT messages
 * of the topic Plain and print RECEIVED, `fifo` does so with the topic Fifo and prints the bodies in the order of
 * their deliveries. The first delivery of every fifth message fails. `tag` and `sql` do so with the half of the
 * messages that a filter matches; each delivery to `dead` fails, until it is killed. `recall` recalls the first of
 * two delayed messages and prints RECALLED. `round-trip` sends one message, receives it, acks it and prints ACKED.
 */
public final class Sdk {
    static final int COUNT = 20;
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    public static void main(String[] arguments) throws Exception {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
            .setEndpoints(arguments[1]).enableSsl(Boolean.getBoolean("tls"));
        if (!arguments[2].isEmpty()) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(arguments[2], arguments[3]));
        }
        ClientConfiguration configuration = builder.build();
        switch (arguments[0]) {
            case "send" -> send(configuration);
            case "push" -> push(configuration, "Plain", FilterExpression.SUB_ALL, COUNT);
            case "fifo" -> push(configuration, "Fifo", FilterExpression.SUB_ALL, COUNT);
            case "tag" -> push(configuration, "Plain", new FilterExpression("odd || other"), COUNT / 2);
            case "sql" -> push(configuration, "Plain",
                new FilterExpression("number >= 10 AND colour = 'blue'", FilterExpressionType.SQL92), COUNT / 2);
            case "dead" -> dead(configuration);
            case "recall" -> recall(configuration);
            case "round-trip" -> roundTrip(configuration);
            default -> simple(configuration);
        }
        System.exit(0);
    }

    static void send(ClientConfiguration configuration) throws Exception {
        CountDownLatch checked = new CountDownLatch(1);
        Producer producer = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration)
            .setTopics("Plain", "Fifo", "Delay", "Transaction")
            .setTransactionChecker(view -> {
                checked.countDown();
                return TransactionResolution.COMMIT;
            })
            .build();
        for (int n = 0; n < COUNT; n++) {
            producer.send(message("Plain", Integer.toString(n)).setTag(n % 2 == 0 ? "even" : "odd").setKeys("k" + n)
                .addProperty("colour", "blue").addProperty("number", Integer.toString(n)).build());
        }
        for (int n = 0; n < COUNT; n++) {
            producer.send(message("Fifo", Integer.toString(n)).setMessageGroup("order-7").build());
        }
        producer.send(message("Delay", "later").setDeliveryTimestamp(System.currentTimeMillis() + 1500).build());
        for (String body : List.of("committed", "rolled back", "checked")) {
            Transaction transaction = producer.beginTransaction();
            producer.send(message("Transaction", body).build(), transaction);
            if (body.equals("committed")) {
                transaction.commit();
            } else if (body.equals("rolled back")) {
                transaction.rollback();
            }
        }
        checked.await();
        producer.close();
        System.out.println("SENT " + COUNT);
    }

    static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    static String text(MessageView view) {
        return StandardCharsets.UTF_8.decode(view.getBody()).toString();
    }

    static void push(ClientConfiguration configuration, String topic, FilterExpression filter, int count)
            throws Exception {
        List<String> order = Collections.synchronizedList(new ArrayList<>());
        Set<String> failed = ConcurrentHashMap.newKeySet();
        Set<String> bodies = ConcurrentHashMap.newKeySet();
        CountDownLatch done = new CountDownLatch(count);
        PushConsumer consumer = PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(topic.equals("Fifo") ? "fifo" : "push")
            .setSubscriptionExpressions(Collections.singletonMap(topic, filter))
            .setMessageListener(view -> {
                String body = text(view);
                if (Integer.parseInt(body) % 5 == 0 && failed.add(body)) {
                    return ConsumeResult.FAILURE;
                }
                if (bodies.add(body)) {
                    order.add(body);
                    done.countDown();
                }
                return ConsumeResult.SUCCESS;
            })
            .build();
        System.out.println("READY");
        done.await();
        if (topic.equals("Fifo")) {
            System.out.println("ORDER " + String.join(" ", order));
        }
        consumer.close();
        System.out.println("RECEIVED " + bodies.size());
    }

    static void dead(ClientConfiguration configuration) throws Exception {
        PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup("dead")
            .setSubscriptionExpressions(Collections.singletonMap("Plain", new FilterExpression("odd")))
            .setMessageListener(view -> ConsumeResult.FAILURE)
            .build();
        System.out.println("READY");
        Thread.currentThread().join();
    }

    static void recall(ClientConfiguration configuration) throws Exception {
        Producer producer = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration).setTopics("Delay").build();
        long now = System.currentTimeMillis();
        String handle = producer.send(message("Delay", "recalled").setDeliveryTimestamp(now + 4000).build())
            .getRecallHandle();
        producer.send(message("Delay", "kept").setDeliveryTimestamp(now + 5000).build());
        producer.recallMessage("Delay", handle);
        producer.close();
        System.out.println("RECALLED");
    }

    static void roundTrip(ClientConfiguration configuration) throws Exception {
        SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup("round-trip")
            .setAwaitDuration(Duration.ofSeconds(1))
            .setSubscriptionExpressions(Collections.singletonMap("Plain", FilterExpression.SUB_ALL))
            .build();
        consumer.receive(1, Duration.ofSeconds(30)); // a new group begins at the end of the topic
        Producer producer = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration).setTopics("Plain").build();
        producer.send(message("Plain", "hello").build());
        List<MessageView> received = List.of();
        while (received.isEmpty()) {
            received = consumer.receive(1, Duration.ofSeconds(30));
        }
        consumer.ack(received.get(0));
        producer.close();
        consumer.close();
        System.out.println("ACKED " + text(received.get(0)));
    }

    static void simple(ClientConfiguration configuration) throws Exception {
        Set<String> failed = ConcurrentHashMap.newKeySet();
        Set<String> bodies = ConcurrentHashMap.newKeySet();
        SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup("simple")
            .setAwaitDuration(Duration.ofSeconds(10))
            .setSubscriptionExpressions(Collections.singletonMap("Plain", FilterExpression.SUB_ALL))
            .build();
        System.out.println("READY");
        while (bodies.size() < COUNT) {
            for (MessageView view : consumer.receive(16, Duration.ofSeconds(30))) {
                String body = text(view);
                if (Integer.parseInt(body) % 5 == 0 && failed.add(body)) {
                    consumer.changeInvisibleDuration(view, Duration.ofSeconds(10));
                } else {
                    consumer.ack(view);
                    bodies.add(body);
                }
            }
        }
        consumer.close();
        System.out.println("RECEIVED " + bodies.size());
    }
}
