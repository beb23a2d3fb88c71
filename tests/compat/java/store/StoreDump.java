package compat;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedWriter;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;

/** Dumps everything that a store serves, in the format of the fixtures' expected.jsonl and expected-keys.jsonl. */
final class StoreDump {
    private static final int QUERY_MAX = 64;

    private final DefaultMessageStore store;

    StoreDump(DefaultMessageStore store) {
        this.store = store;
    }

    void write(String dumpFile, String keysFile) throws Exception {
        Map<String, Set<String>> keysOfTopics = new TreeMap<>();
        try (BufferedWriter out = Files.newBufferedWriter(Paths.get(dumpFile))) {
            for (String topic : new TreeSet<>(store.getConsumeQueueTable().keySet())) {
                Map<Integer, ConsumeQueueInterface> queues =
                    new TreeMap<>(store.getConsumeQueueTable().get(topic));
                for (ConsumeQueueInterface queue : queues.values()) {
                    Set<String> keys = keysOfTopics.computeIfAbsent(topic, any -> new TreeSet<>());
                    writeQueue(out, topic, queue, keys);
                }
            }
        }
        try (BufferedWriter out = Files.newBufferedWriter(Paths.get(keysFile))) {
            for (Map.Entry<String, Set<String>> entry : keysOfTopics.entrySet()) {
                for (String key : entry.getValue()) {
                    writeLine(out, query(entry.getKey(), key));
                }
            }
        }
    }

    private void writeQueue(BufferedWriter out, String topic, ConsumeQueueInterface queue, Set<String> keys)
            throws Exception {
        for (long offset = queue.getMinOffsetInQueue(); offset < queue.getMaxOffsetInQueue(); offset++) {
            CqUnit unit = queue.get(offset);
            Map<String, Object> line = new LinkedHashMap<>();
            line.put("topic", topic);
            line.put("queueId", queue.getQueueId());
            line.put("queueOffset", offset);
            line.put("commitLogOffset", unit.getPos());
            line.put("storeSize", unit.getSize());
            line.put("tagsCode", unit.getTagsCode());
            MessageExt message = putRecord(line, unit);
            keys.addAll(keysOf(message));
            writeLine(out, line);
        }
    }

    private MessageExt putRecord(Map<String, Object> line, CqUnit unit) throws Exception {
        SelectMappedBufferResult slice = store.selectOneMessageByOffset(unit.getPos(), unit.getSize());
        try {
            ByteBuffer buffer = slice.getByteBuffer();
            MessageExt message = MessageDecoder.decode(buffer.duplicate(), true, false);
            line.put("msgTopic", message.getTopic());
            line.put("msgQueueId", message.getQueueId());
            line.put("msgQueueOffset", message.getQueueOffset());
            line.put("msgId", message.getMsgId());
            line.put("uniqKey", message.getProperty("UNIQ_KEY"));
            line.put("tags", message.getTags());
            line.put("keys", message.getKeys());
            line.put("properties", new TreeMap<>(message.getProperties()));
            line.put("sysFlag", message.getSysFlag());
            line.put("flag", message.getFlag());
            line.put("bornTimestamp", message.getBornTimestamp());
            line.put("storeTimestamp", message.getStoreTimestamp());
            line.put("bornHost", hostAndPort(message.getBornHost()));
            line.put("storeHost", hostAndPort(message.getStoreHost()));
            line.put("reconsumeTimes", message.getReconsumeTimes());
            line.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
            byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
            line.put("bodyCRC", message.getBodyCRC());
            line.put("bodyCRCok", (body.length == 0 ? 0 : UtilAll.crc32(body)) == message.getBodyCRC());
            line.put("bodyLen", body.length);
            line.put("bodySha1", sha1(body));
            if ((message.getSysFlag() & MessageSysFlag.COMPRESSED_FLAG) != 0) {
                byte[] plain = MessageDecoder.decode(buffer.duplicate(), true, true).getBody();
                line.put("plainBodyLen", plain.length);
                line.put("plainBodySha1", sha1(plain));
            }
            return message;
        } finally {
            slice.release();
        }
    }

    private Map<String, Object> query(String topic, String key) {
        List<Long> offsets = new ArrayList<>();
        QueryMessageResult result = store.queryMessage(topic, key, QUERY_MAX, 0, Long.MAX_VALUE);
        for (SelectMappedBufferResult slice : result.getMessageMapedList()) {
            MessageExt message = MessageDecoder.decode(slice.getByteBuffer(), true, false);
            // The index returns all messages with the same key hash; compare the key, as RocketMQ's client does.
            if (message.getTopic().equals(topic) && keysOf(message).contains(key)) {
                offsets.add(message.getCommitLogOffset());
            }
            slice.release();
        }
        offsets.sort(null);
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("queryTopic", topic);
        line.put("queryKey", key);
        line.put("commitLogOffsets", offsets);
        return line;
    }

    private static Set<String> keysOf(MessageExt message) {
        Set<String> keys = new LinkedHashSet<>();
        if (message.getProperty("UNIQ_KEY") != null) {
            keys.add(message.getProperty("UNIQ_KEY"));
        }
        if (message.getKeys() != null) {
            keys.addAll(Arrays.asList(message.getKeys().split(" ")));
        }
        keys.remove("");
        return keys;
    }

    private static String hostAndPort(java.net.SocketAddress address) {
        java.net.InetSocketAddress host = (java.net.InetSocketAddress) address;
        return host.getAddress().getHostAddress() + ":" + host.getPort();
    }

    private static void writeLine(BufferedWriter out, Map<String, Object> line) throws java.io.IOException {
        out.write(JSON.toJSONString(line, JSONWriter.Feature.WriteNulls));
        out.newLine();
    }

    private static String sha1(byte[] bytes) throws NoSuchAlgorithmException {
        StringBuilder hex = new StringBuilder();
        for (byte part : MessageDigest.getInstance("SHA-1").digest(bytes)) {
            hex.append(String.format("%02x", part));
        }
        return hex.toString();
    }
}
