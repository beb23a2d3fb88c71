package compat;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.common.message.MessageQueue;

/** Operations that query routes, offsets and messages. */
final class QueryOperations {
    private static final String ASKER = "CompatAskers";

    private final Clients clients;

    QueryOperations(Clients clients) {
        this.clients = clients;
    }

    void addTo(Map<String, Agent.Operation> operations) {
        operations.put("publish_queues", request ->
            Facts.ofQueues(clients.producer().fetchPublishMessageQueues(request.text("topic"))));
        operations.put("offsets", this::offsets);
        operations.put("view", request ->
            Facts.of(clients.producer().viewMessage(request.text("topic"), request.text("msgId"))));
        operations.put("query", request -> Facts.of(clients.producer().queryMessage(
            request.text("topic"),
            request.text("key"),
            (int) request.number("max", 32),
            request.number("beginMs", 0),
            request.number("endMs", System.currentTimeMillis() + 60_000)).getMessageList()));
    }

    /** Returns the minimum and maximum offset of each queue, the earliest store time, and the offset at a timestamp. */
    private Object offsets(Request request) throws Exception {
        DefaultMQPullConsumer puller = clients.puller(ASKER);
        List<Object> all = new ArrayList<>();
        for (MessageQueue queue : new TreeSet<>(puller.fetchSubscribeMessageQueues(request.text("topic")))) {
            Map<String, Object> facts = new LinkedHashMap<>();
            facts.put("queueId", queue.getQueueId());
            facts.put("min", puller.minOffset(queue));
            facts.put("max", puller.maxOffset(queue));
            facts.put("earliestMs", puller.earliestMsgStoreTime(queue));
            if (request.has("timestampMs")) {
                facts.put("atTime", puller.searchOffset(queue, request.number("timestampMs")));
            }
            all.add(facts);
        }
        return all;
    }
}
