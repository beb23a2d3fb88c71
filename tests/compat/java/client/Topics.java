package compat;

import java.util.List;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;

/** Creates topics with the request that mqadmin sends (UPDATE_AND_CREATE_TOPIC). */
final class Topics {
    private static final long ROUTE_WAIT_MS = 20_000;

    private Topics() {
    }

    /** Creates the topic on the broker at the address, and waits until the nameserver has its route. */
    static int create(DefaultMQProducer producer, String brokerAddress, String topic, int queues, int permission)
            throws Exception {
        TopicConfig config = new TopicConfig(topic, queues, queues, permission);
        producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl()
            .createTopic(brokerAddress, "TBW102", config, 10_000);
        long deadline = System.currentTimeMillis() + ROUTE_WAIT_MS;
        while (true) {
            int seen = publishQueues(producer, topic);
            if (seen == queues || (permission & 2) == 0) {
                return seen;
            }
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("the route of " + topic + " shows " + seen + " of " + queues + " queues");
            }
            Thread.sleep(100);
        }
    }

    private static int publishQueues(DefaultMQProducer producer, String topic) {
        try {
            List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
            return queues.size();
        } catch (Exception noRouteYet) {
            return 0;
        }
    }
}
