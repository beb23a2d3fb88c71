package compat;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/** The fields of a request, or of an object in it. */
@SuppressWarnings("unchecked")
final class Request {
    private final Map<String, Object> fields;

    private Request(Map<String, Object> fields) {
        this.fields = fields;
    }

    static Request parse(String line) {
        return new Request(RemotingSerializable.fromJson(line, Map.class));
    }

    boolean has(String key) {
        return fields.get(key) != null;
    }

    String text(String key) {
        if (!has(key)) {
            throw new IllegalArgumentException(key + " is missing in " + fields);
        }
        return fields.get(key).toString();
    }

    String text(String key, String otherwise) {
        return has(key) ? text(key) : otherwise;
    }

    long number(String key) {
        return Long.parseLong(text(key));
    }

    long number(String key, long otherwise) {
        return has(key) ? number(key) : otherwise;
    }

    boolean flag(String key) {
        return Boolean.TRUE.equals(fields.get(key));
    }

    Map<String, Object> map(String key) {
        return has(key) ? (Map<String, Object>) fields.get(key) : Collections.emptyMap();
    }

    List<Request> list(String key) {
        List<Request> items = new ArrayList<>();
        for (Object item : (List<Object>) fields.get(key)) {
            items.add(new Request((Map<String, Object>) item));
        }
        return items;
    }

    /** Returns the queue in the fields topic, broker and queueId. */
    MessageQueue queue() {
        return new MessageQueue(text("topic"), text("broker"), (int) number("queueId"));
    }
}
