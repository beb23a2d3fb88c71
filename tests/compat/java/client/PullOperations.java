package compat;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.store.OffsetStore;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Operations of the two kinds of pull consumer. */
final class PullOperations {
    private final Clients clients;

    PullOperations(Clients clients) {
        this.clients = clients;
    }

    void addTo(Map<String, Agent.Operation> operations) {
        operations.put("lite_start", this::startLite);
        operations.put("lite_poll", this::pollLite);
        operations.put("lite_seek", request -> {
            lite(request).seek(request.queue(), request.number("offset"));
            return true;
        });
        operations.put("lite_commit", request -> {
            lite(request).commitSync();
            return true;
        });
        operations.put("lite_committed", request -> lite(request).committed(request.queue()));
        operations.put("lite_stop", request -> {
            clients.lites.remove(request.text("name")).shutdown();
            return true;
        });
        operations.put("pull", this::pull);
        operations.put("consumer_offset", request -> clients.puller(request.text("group"))
            .getDefaultMQPullConsumerImpl().fetchConsumeOffset(request.queue(), true));
        operations.put("commit_offset", request -> {
            OffsetStore offsets = clients.puller(request.text("group"))
                .getDefaultMQPullConsumerImpl().getOffsetStore();
            // Update the client's table too: it saves that on shutdown, and an earlier query has cached its result in it.
            offsets.updateOffset(request.queue(), request.number("offset"), false);
            offsets.updateConsumeOffsetToBroker(request.queue(), request.number("offset"), false);
            return true;
        });
    }

    private DefaultLitePullConsumer lite(Request request) {
        return clients.lites.get(request.text("name"));
    }

    /** Starts a lite pull consumer: assigned to all queues of the topic, or subscribed with rebalance in its group. */
    private Object startLite(Request request) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(request.text("group"), Clients.signing());
        clients.configure(consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(request.flag("autoCommit"));
        if (request.has("sql")) {
            consumer.subscribe(request.text("topic"), MessageSelector.bySql(request.text("sql")));
        } else if (!request.flag("assign")) {
            consumer.subscribe(request.text("topic"), request.text("expression", "*"));
        }
        consumer.start();
        if (request.flag("assign")) {
            consumer.assign(new ArrayList<>(consumer.fetchMessageQueues(request.text("topic"))));
        }
        clients.lites.put(request.text("name"), consumer);
        return consumer.buildMQClientId();
    }

    private Object pollLite(Request request) throws Exception {
        List<MessageExt> all = new ArrayList<>();
        long deadline = System.currentTimeMillis() + request.number("timeoutMs");
        while (all.size() < request.number("count") && System.currentTimeMillis() < deadline) {
            all.addAll(lite(request).poll(200));
        }
        return Facts.of(all);
    }

    private Object pull(Request request) throws Exception {
        DefaultMQPullConsumer puller = clients.puller(request.text("group"));
        MessageQueue queue = request.queue();
        String expression = request.text("expression", "*");
        int most = (int) request.number("max", 32);
        PullResult result = request.has("sql")
            ? puller.pull(queue, MessageSelector.bySql(request.text("sql")), request.number("offset"), most)
            : request.flag("wait")
            ? puller.pullBlockIfNotFound(queue, expression, request.number("offset"), most)
            : puller.pull(queue, expression, request.number("offset"), most);
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("status", result.getPullStatus().name());
        facts.put("next", result.getNextBeginOffset());
        facts.put("min", result.getMinOffset());
        facts.put("max", result.getMaxOffset());
        facts.put("messages", result.getMsgFoundList() == null ? new ArrayList<>() : Facts.of(result.getMsgFoundList()));
        return facts;
    }
}
