package compat;

import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;

/** Puts messages as a Java broker does, into existing queues (FromOurs) and new ones (FromJava). */
final class Puts {
    private final DefaultMessageStore store;

    Puts(DefaultMessageStore store) {
        this.store = store;
    }

    void put(int count) {
        for (int i = 0; i < count; i++) {
            PutMessageResult result = store.putMessage(message(i));
            if (!result.isOk()) {
                throw new IllegalStateException("put " + i + ": " + result.getPutMessageStatus());
            }
        }
    }

    private static MessageExtBrokerInner message(int i) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(i % 2 == 0 ? "FromOurs" : "FromJava");
        message.setQueueId(i % 3);
        message.setBody(("put by Java, " + i + " – ключ").getBytes(StandardCharsets.UTF_8));
        message.setTags("TagJ");
        message.setKeys("java" + i + " jgroup" + i % 50);
        MessageClientIDSetter.setUniqID(message);
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_CLUSTER, "DefaultCluster");
        message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(null, message.getTags()));
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(new InetSocketAddress("127.0.0.1", 40_000));
        message.setStoreHost(new InetSocketAddress("127.0.0.1", 10_911));
        return message;
    }
}
