package compat;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.impl.consumer.ProcessQueue;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/** Operations of push consumers; each has a name and keeps its received messages. */
final class PushOperations {
    private static final long LISTENERS_END_WITHIN_MS = 10_000;

    private final Clients clients;
    private final Map<String, Inbox> inboxes = new HashMap<>();

    PushOperations(Clients clients) {
        this.clients = clients;
    }

    /** The messages that one consumer has received, in order. */
    private static final class Inbox {
        private final List<Map<String, Object>> received = new ArrayList<>();
        private final int failures;
        private boolean isFrozen;

        Inbox(int failures) {
            this.failures = failures;
        }

        /** Records the messages; returns false if consuming must fail, before the message has had `failures` retries. */
        synchronized boolean take(List<MessageExt> messages) {
            while (isFrozen) {
                try {
                    wait();
                } catch (InterruptedException interrupted) {
                    return false;
                }
            }
            boolean accepted = true;
            for (MessageExt message : messages) {
                try {
                    received.add(Facts.of(message));
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
                accepted &= message.getReconsumeTimes() >= failures;
            }
            notifyAll();
            return accepted;
        }

        synchronized List<Map<String, Object>> await(int count, long timeoutMs) throws InterruptedException {
            long deadline = System.currentTimeMillis() + timeoutMs;
            while (received.size() < count && System.currentTimeMillis() < deadline) {
                wait(Math.max(1, deadline - System.currentTimeMillis()));
            }
            return new ArrayList<>(received);
        }

        /** Blocks all further listener calls; returns the messages received so far, the most that can be consumed. */
        synchronized List<Map<String, Object>> freeze() {
            isFrozen = true;
            return new ArrayList<>(received);
        }
    }

    /** Delays each heartbeat. */
    private static final class SlowHeartbeats implements RPCHook {
        private static final int HEART_BEAT = 34;
        private final long millis;

        SlowHeartbeats(long millis) {
            this.millis = millis;
        }

        @Override
        public void doBeforeRequest(String address, RemotingCommand request) {
            if (request.getCode() == HEART_BEAT) {
                try {
                    Thread.sleep(millis);
                } catch (InterruptedException interrupted) {
                    Thread.currentThread().interrupt();
                }
            }
        }

        @Override
        public void doAfterResponse(String address, RemotingCommand request, RemotingCommand response) {
        }
    }

    void addTo(Map<String, Agent.Operation> operations) {
        operations.put("push_start", this::start);
        operations.put("push_received", request ->
            inboxes.get(request.text("name")).await((int) request.number("count"), request.number("timeoutMs")));
        operations.put("push_freeze", request -> inboxes.get(request.text("name")).freeze());
        operations.put("push_queues", request -> Facts.ofQueues(
            consumer(request).getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()));
        operations.put("push_stop", request -> {
            DefaultMQPushConsumer consumer = clients.pushers.remove(request.text("name"));
            awaitConsumed(consumer);
            // RocketMQ's broker loses some of the first commits of a group if they arrive concurrently: `shutdown`
            // commits again.
            consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
            consumer.shutdown();
            return true;
        });
    }

    /** Waits until the client counts received messages as consumed; else they would be delivered again after a stop. */
    private static void awaitConsumed(DefaultMQPushConsumer consumer) throws InterruptedException {
        Map<?, ProcessQueue> queues = consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable();
        long deadline = System.currentTimeMillis() + LISTENERS_END_WITHIN_MS;
        while (queues.values().stream().anyMatch(queue -> queue.getMsgCount().get() > 0)
            && System.currentTimeMillis() < deadline) {
            Thread.sleep(5);
        }
    }

    private DefaultMQPushConsumer consumer(Request request) {
        return clients.pushers.get(request.text("name"));
    }

    private Object start(Request request) throws Exception {
        String group = request.text("group");
        long heartbeatTakesMs = request.number("heartbeatTakesMs", 0);
        DefaultMQPushConsumer consumer = heartbeatTakesMs > 0
            ? new DefaultMQPushConsumer(group, new SlowHeartbeats(heartbeatTakesMs), new AllocateMessageQueueAveragely())
            : new DefaultMQPushConsumer(group, Clients.signing(), new AllocateMessageQueueAveragely());
        clients.configure(consumer);
        if (heartbeatTakesMs > 0) {
            consumer.setHeartbeatBrokerInterval(Integer.MAX_VALUE); // no later heartbeat repairs the effect of the slow ones
        }
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(request.text("from", "CONSUME_FROM_FIRST_OFFSET")));
        if (request.has("fromTimestampMs")) {
            consumer.setConsumeTimestamp(UtilAll.timeMillisToHumanString3(request.number("fromTimestampMs")));
        }
        // The MessageModel enum is in different packages in 4.x and 5.x; its JSON name is the same.
        setModel(consumer, request.text("model", "CLUSTERING"));
        if (request.text("strategy", "AVG").equals("AVG_BY_CIRCLE")) {
            consumer.setAllocateMessageQueueStrategy(new AllocateMessageQueueAveragelyByCircle());
        }
        consumer.setMaxReconsumeTimes((int) request.number("maxReconsumeTimes", -1));
        consumer.setAwaitTerminationMillisWhenShutdown(LISTENERS_END_WITHIN_MS);
        consumer.setVipChannelEnabled(request.flag("vip"));
        if (request.flag("brokerBalances")) {
            // The setting exists only in 5.x; the same sources are compiled against 4.9.8.
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        }
        Inbox inbox = new Inbox((int) request.number("failures", 0));
        if (request.flag("replies")) {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> reply(messages));
        } else if (request.flag("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> inbox.take(messages)
                ? ConsumeOrderlyStatus.SUCCESS
                : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> inbox.take(messages)
                ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        if (request.has("sql")) {
            consumer.subscribe(request.text("topic"), MessageSelector.bySql(request.text("sql")));
        } else {
            consumer.subscribe(request.text("topic"), request.text("expression", "*"));
        }
        consumer.start();
        inboxes.put(request.text("name"), inbox);
        clients.pushers.put(request.text("name"), consumer);
        return consumer.buildMQClientId();
    }

    /** Replies to each request with its body repeated twice. */
    private ConsumeConcurrentlyStatus reply(List<MessageExt> messages) {
        try {
            for (MessageExt message : messages) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                Message reply = MessageUtil.createReplyMessage(message, (body + body).getBytes(StandardCharsets.UTF_8));
                clients.producer().send(reply);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    private static void setModel(DefaultMQPushConsumer consumer, String model) throws Exception {
        Class<?> models = consumer.getMessageModel().getClass();
        Object value = RemotingSerializable.fromJson('"' + model + '"', models);
        DefaultMQPushConsumer.class.getMethod("setMessageModel", models).invoke(consumer, value);
    }
}
