import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Messages with a priority, with RocketMQ's Java SDK for gRPC 5.2.0. Argument: endpoints.
 *
 * <p>Sends priorities to the topic Urgent and prints RECEIVED with those of the messages in the order of their
 * deliveries, then REFUSED for each message whose type the SDK or the gateway refuses.
 */
public final class Priorities {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(arguments[0]).enableSsl(false).build();
        SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup("urgent")
            .setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Map.of("Urgent", FilterExpression.SUB_ALL))
            .build();
        Producer producer = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration).setTopics("Urgent", "Normal").build();
        for (int priority : new int[] {0, 0, 1, 1, 2, 2, 3, 3}) {
            producer.send(message("Urgent", priority));
        }
        List<String> received = new ArrayList<>();
        while (received.size() < 8) {
            for (MessageView view : consumer.receive(8, Duration.ofSeconds(60))) {
                received.add(view.getPriority().map(String::valueOf).orElse("none"));
                consumer.ack(view);
            }
        }
        System.out.println("RECEIVED " + String.join("", received));
        refused(producer, message("Normal", 1));
        refused(producer, PROVIDER.newMessageBuilder().setTopic("Urgent").setBody(new byte[1]).build());
        System.exit(0);
    }

    static Message message(String topic, int priority) {
        byte[] body = Integer.toString(priority).getBytes(StandardCharsets.UTF_8);
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body).setPriority(priority).build();
    }

    static void refused(Producer producer, Message message) {
        try {
            producer.send(message);
        } catch (Exception error) {
            System.out.println("REFUSED");
        }
    }
}
