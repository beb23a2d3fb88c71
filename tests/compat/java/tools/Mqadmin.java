package compat;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import org.apache.commons.cli.CommandLine;
import org.apache.commons.cli.DefaultParser;
import org.apache.commons.cli.Options;
import org.apache.rocketmq.srvutil.ServerUtil;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/**
 * RocketMQ's own mqadmin, many commands in one JVM, and at once: each takes three seconds to shut its client down.
 * A line on stdin is a number and the arguments, separated by tabs; its answer is "@number " with all that the
 * command printed, in base 64.
 */
public final class Mqadmin {
    /** What the thread's command prints; other threads print nothing. */
    private static final InheritableThreadLocal<ByteArrayOutputStream> SAID = new InheritableThreadLocal<>();

    /** Of two clients that are made in the same millisecond the second is refused, and has done nothing. */
    private static final String NAME_TAKEN = "The adminExt group[admin_ext_group] has created already";

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        PrintStream routed = new PrintStream(new Routed(), true, "UTF-8");
        System.setOut(routed);
        System.setErr(routed);
        MQAdminStartup.initCommand();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        out.println("@ready");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t");
            Thread.sleep(50); // its client is named after the millisecond
            new Thread(() -> answer(words, out)).start();
        }
        System.exit(0);
    }

    private static void answer(String[] words, PrintStream out) {
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        SAID.set(said);
        do {
            said.reset();
            try {
                run(words[1], Arrays.copyOfRange(words, 2, words.length));
            } catch (Throwable error) {
                error.printStackTrace(System.out);
            }
            System.out.flush();
        } while (said.toString().contains(NAME_TAKEN));
        String encoded = Base64.getEncoder().encodeToString(said.toByteArray());
        synchronized (out) {
            out.println("@" + words[0] + " " + encoded);
            out.flush();
        }
    }

    private static void run(String name, String[] arguments) throws Exception {
        SubCommand command = Commands.find(name);
        Options options = command.buildCommandlineOptions(ServerUtil.buildCommandlineOptions(new Options()));
        CommandLine line = ServerUtil.parseCmdLine("mqadmin " + name, arguments, options, new DefaultParser());
        synchronized (command) { // it keeps its client in a field
            command.execute(line, options, null);
        }
    }

    private static final class Commands extends MQAdminStartup {
        static SubCommand find(String name) {
            return SUB_COMMANDS.stream().filter(each -> each.commandName().equals(name)).findFirst().get();
        }
    }

    private static final class Routed extends OutputStream {
        @Override
        public void write(int one) {
            ByteArrayOutputStream said = SAID.get();
            if (said != null) {
                said.write(one);
            }
        }

        @Override
        public void write(byte[] bytes, int from, int count) {
            ByteArrayOutputStream said = SAID.get();
            if (said != null) {
                said.write(bytes, from, count);
            }
        }
    }
}
