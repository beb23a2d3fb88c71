package compat;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Converts messages, queues and results to maps and lists, for JSON. */
final class Facts {
    private static final int BODY_SHOWN = 1024;

    private Facts() {
    }

    static Map<String, Object> of(MessageExt message) throws Exception {
        Map<String, Object> facts = new LinkedHashMap<>();
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        facts.put("topic", message.getTopic());
        facts.put("broker", message.getBrokerName());
        facts.put("queueId", message.getQueueId());
        facts.put("queueOffset", message.getQueueOffset());
        facts.put("commitLogOffset", message.getCommitLogOffset());
        facts.put("msgId", message.getMsgId());
        facts.put("tags", message.getTags());
        facts.put("keys", message.getKeys());
        facts.put("flag", message.getFlag());
        facts.put("properties", new TreeMap<>(message.getProperties()));
        facts.put("bodyLength", body.length);
        facts.put("bodySha1", sha1(body));
        facts.put("body", body.length <= BODY_SHOWN ? new String(body, StandardCharsets.UTF_8) : null);
        facts.put("storeSize", message.getStoreSize());
        facts.put("sysFlag", message.getSysFlag());
        facts.put("reconsumeTimes", message.getReconsumeTimes());
        facts.put("bornTimestamp", message.getBornTimestamp());
        facts.put("storeTimestamp", message.getStoreTimestamp());
        return facts;
    }

    static List<Object> of(Collection<MessageExt> messages) throws Exception {
        List<Object> facts = new ArrayList<>();
        for (MessageExt message : messages) {
            facts.add(of(message));
        }
        return facts;
    }

    static Map<String, Object> of(SendResult result) {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("status", result.getSendStatus().name());
        facts.put("msgId", result.getMsgId());
        facts.put("offsetMsgId", result.getOffsetMsgId());
        facts.put("topic", result.getMessageQueue().getTopic());
        facts.put("broker", result.getMessageQueue().getBrokerName());
        facts.put("queueId", result.getMessageQueue().getQueueId());
        facts.put("queueOffset", result.getQueueOffset());
        facts.put("regionId", result.getRegionId());
        facts.put("transactionId", result.getTransactionId());
        facts.put("traceOn", result.isTraceOn());
        try { // clients before 5.3.1 have no recall handle
            facts.put("recallHandle", SendResult.class.getMethod("getRecallHandle").invoke(result));
        } catch (ReflectiveOperationException error) {
            facts.put("recallHandle", null);
        }
        return facts;
    }

    static List<Object> ofQueues(Collection<MessageQueue> queues) {
        List<Object> facts = new ArrayList<>();
        for (MessageQueue queue : new TreeSet<>(queues)) {
            Map<String, Object> one = new LinkedHashMap<>();
            one.put("topic", queue.getTopic());
            one.put("broker", queue.getBrokerName());
            one.put("queueId", queue.getQueueId());
            facts.add(one);
        }
        return facts;
    }

    static String sha1(byte[] bytes) throws Exception {
        StringBuilder hex = new StringBuilder();
        for (byte part : MessageDigest.getInstance("SHA-1").digest(bytes)) {
            hex.append(String.format("%02x", part));
        }
        return hex.toString();
    }
}
