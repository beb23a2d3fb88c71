package compat;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** Operations of producers and consumers that write message traces. A stop waits until the traces are sent. */
final class TraceOperations {
    private final Clients clients;
    private final Map<String, DefaultMQPushConsumer> consumers = new ConcurrentHashMap<>();

    TraceOperations(Clients clients) {
        this.clients = clients;
    }

    void addTo(Map<String, Agent.Operation> operations) {
        operations.put("traced_send", this::send);
        operations.put("traced_consume", this::consume);
        operations.put("traced_stop", request -> {
            consumers.remove(request.text("group")).shutdown();
            return true;
        });
    }

    /** Sends one message, with tags and keys if they are given, and returns the result. */
    private Object send(Request request) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(request.text("group"), true, request.text("traceTopic"));
        clients.configure(producer);
        producer.setSendMsgTimeout(20_000);
        producer.start();
        try {
            Message message = new Message(request.text("topic"), request.text("body").getBytes(StandardCharsets.UTF_8));
            if (request.has("tags")) {
                message.setTags(request.text("tags"));
            }
            if (request.has("keys")) {
                message.setKeys(request.text("keys"));
            }
            return Facts.of(producer.send(message));
        } finally {
            producer.shutdown();
        }
    }

    /** Starts a consumer, whose listener fails for the first delivery of the body "fails once". */
    private Object consume(Request request) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(request.text("group"), true, request.text("traceTopic"));
        clients.configure(consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            String body = new String(messages.get(0).getBody(), StandardCharsets.UTF_8);
            boolean fails = body.equals("fails once") && messages.get(0).getReconsumeTimes() == 0;
            return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.subscribe(request.text("topic"), "*");
        consumer.start();
        consumers.put(request.text("group"), consumer);
        return true;
    }
}
