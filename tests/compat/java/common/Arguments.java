package compat;

import java.util.HashMap;
import java.util.Map;

/** Command-line arguments of the form key=value, each key once. */
final class Arguments {
    private final Map<String, String> values = new HashMap<>();

    Arguments(String[] args) {
        for (String arg : args) {
            int at = arg.indexOf('=');
            if (at < 0) {
                throw new IllegalArgumentException("not key=value: " + arg);
            }
            values.put(arg.substring(0, at), arg.substring(at + 1));
        }
    }

    String text(String key) {
        String value = values.get(key);
        if (value == null) {
            throw new IllegalArgumentException(key + "= is missing");
        }
        return value;
    }

    String text(String key, String otherwise) {
        return values.getOrDefault(key, otherwise);
    }

    int number(String key, int otherwise) {
        String value = values.get(key);
        return value == null ? otherwise : Integer.parseInt(value);
    }
}
