import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.TreeMap;
import org.apache.flink.api.common.JobExecutionResult;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.accumulators.LongCounter;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RuntimeContext;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.typeutils.SimpleTypeSerializerSnapshot;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshot;
import org.apache.flink.api.common.typeutils.base.TypeSerializerSingleton;
import org.apache.flink.api.common.serialization.SerializerConfig;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.co.CoProcessFunction;
import org.apache.flink.streaming.api.functions.co.ProcessJoinFunction;
import org.apache.flink.streaming.api.functions.sink.legacy.RichSinkFunction;
import org.apache.flink.streaming.api.functions.source.legacy.RichParallelSourceFunction;
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.Table;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;
import org.apache.flink.util.Collector;

/**
 * Counts the pairs of an interval join with Flink, several times over in one JVM, one line "RUN seconds cpuSeconds count" each.
 *
 * <p>Input: two raw little-endian files of (ts, key) longs, ascending ts, which flink_join.py makes outside the timed
 * part. Flink counts time in milliseconds but does no arithmetic that needs them, so one microsecond of the input is
 * one unit of event time here and the bounds are exact. The source merges both files by ts, so that neither stream
 * runs ahead and the state holds what the window asks for. A run is timed from submission to its end on a running
 * cluster. Not here: checkpoints, restarts, payloads, output of the pairs.
 *
 * <p>A band has keys at most so far apart: by datastream its keys are cells of the band's width and a half more, with the left
 * tuples in three of them; by broadcast every task has all right tuples and its part of the left ones, in maps sorted by value,
 * as a user would write it without an equality; by sql it is a condition without one, which runs on one task.
 *
 * <p>A star has a third file, and tuples of one key that lie at most `within` apart, each two of them: by multijoin it is Flink's
 * operator of that name (table.optimizer.multi-join.enabled), whose state never expires, as its time is no event time; by
 * intervals two interval joins in a row.
 *
 * <p>Arguments: files(left,right[,third]) within runs api(datastream|sql|broadcast|multijoin|intervals) parallelism
 * sourceParallelism watermarkEvery band.
 */
public final class FlinkIntervalJoin {
    static final String PAIRS = "pairs";

    private FlinkIntervalJoin() {}

    /** One tuple; the side, its file's number, does not travel, the stream tells it. */
    public static final class Event {
        long ts;
        long key;
        int side;
    }

    /** 16 bytes a tuple. */
    public static final class EventSerializer extends TypeSerializerSingleton<Event> {
        static final EventSerializer INSTANCE = new EventSerializer();

        @Override
        public boolean isImmutableType() {
            return false;
        }

        @Override
        public Event createInstance() {
            return new Event();
        }

        @Override
        public Event copy(Event from) {
            return copy(from, new Event());
        }

        @Override
        public Event copy(Event from, Event reuse) {
            reuse.ts = from.ts;
            reuse.key = from.key;
            reuse.side = from.side;
            return reuse;
        }

        @Override
        public int getLength() {
            return 16;
        }

        @Override
        public void serialize(Event event, DataOutputView target) throws IOException {
            target.writeLong(event.ts);
            target.writeLong(event.key);
        }

        @Override
        public Event deserialize(DataInputView source) throws IOException {
            return deserialize(new Event(), source);
        }

        @Override
        public Event deserialize(Event reuse, DataInputView source) throws IOException {
            reuse.ts = source.readLong();
            reuse.key = source.readLong();
            return reuse;
        }

        @Override
        public void copy(DataInputView source, DataOutputView target) throws IOException {
            target.write(source, 16);
        }

        @Override
        public TypeSerializerSnapshot<Event> snapshotConfiguration() {
            return new Snapshot();
        }

        /** Asked for by the interface. */
        public static final class Snapshot extends SimpleTypeSerializerSnapshot<Event> {
            public Snapshot() {
                super(() -> INSTANCE);
            }
        }
    }

    /** Ties Event to its serializer. */
    static final class EventType extends TypeInformation<Event> {
        @Override
        public boolean isBasicType() {
            return false;
        }

        @Override
        public boolean isTupleType() {
            return false;
        }

        @Override
        public int getArity() {
            return 1;
        }

        @Override
        public int getTotalFields() {
            return 1;
        }

        @Override
        public Class<Event> getTypeClass() {
            return Event.class;
        }

        @Override
        public boolean isKeyType() {
            return false;
        }

        @Override
        public TypeSerializer<Event> createSerializer(SerializerConfig config) {
            return EventSerializer.INSTANCE;
        }

        @Override
        public String toString() {
            return "Event";
        }

        @Override
        public boolean equals(Object other) {
            return other instanceof EventType;
        }

        @Override
        public int hashCode() {
            return 1;
        }

        @Override
        public boolean canEqual(Object other) {
            return other instanceof EventType;
        }
    }

    /** The files merged by ts; of s subtasks, the i-th reads the rows i, i + s, i + 2s, ... of each file. */
    static final class Merged extends RichParallelSourceFunction<Event> {
        private final String[] paths;
        private final int every;
        private volatile boolean running = true;

        Merged(String[] paths, int every) {
            this.paths = paths;
            this.every = every;
        }

        @Override
        public void run(SourceContext<Event> out) throws Exception {
            int step = getRuntimeContext().getTaskInfo().getNumberOfParallelSubtasks();
            int sides = paths.length;
            LongBuffer[] rows = new LongBuffer[sides];
            int[] at = new int[sides];
            long[] next = new long[sides]; // times
            for (int side = 0; side < sides; side++) {
                rows[side] = map(paths[side]);
                at[side] = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask();
                next[side] = time(rows[side], at[side]);
            }
            Event event = new Event(); // serialized before collect returns, so one is enough
            int count = 0;
            while (running) {
                int side = 0;
                for (int other = 1; other < sides; other++) {
                    side = next[other] < next[side] ? other : side;
                }
                if (next[side] == Long.MAX_VALUE) {
                    return;
                }
                event.ts = next[side];
                event.key = rows[side].get(2 * at[side] + 1);
                event.side = side;
                at[side] += step;
                next[side] = time(rows[side], at[side]);
                out.collectWithTimestamp(event, event.ts);
                if (++count % every == 0) {
                    out.emitWatermark(new Watermark(event.ts - 1));
                }
            }
        }

        private static long time(LongBuffer rows, int row) {
            return 2 * row < rows.limit() ? rows.get(2 * row) : Long.MAX_VALUE;
        }

        @Override
        public void cancel() {
            running = false;
        }

        private static LongBuffer map(String path) throws IOException {
            try (FileChannel file = FileChannel.open(Path.of(path))) {
                return file.map(FileChannel.MapMode.READ_ONLY, 0, file.size())
                        .order(ByteOrder.LITTLE_ENDIAN)
                        .asLongBuffer();
            }
        }
    }

    /** Counts the pairs where they are found; nothing is emitted. */
    static final class CountPairs extends ProcessJoinFunction<Event, Event, Long> {
        private final LongCounter pairs = new LongCounter();

        @Override
        public void open(OpenContext context) {
            RuntimeContext runtime = getRuntimeContext();
            runtime.addAccumulator(PAIRS, pairs);
        }

        @Override
        public void processElement(Event left, Event right, Context context, Collector<Long> out) {
            pairs.add(1L);
        }
    }

    /** Counts rows at the end of an SQL join; one that is withdrawn counts -1. */
    static final class CountRows extends RichSinkFunction<Row> {
        private final LongCounter pairs = new LongCounter();

        @Override
        public void open(OpenContext context) {
            getRuntimeContext().addAccumulator(PAIRS, pairs);
        }

        @Override
        public void invoke(Row row, Context context) {
            pairs.add(row.getKind() == RowKind.DELETE || row.getKind() == RowKind.UPDATE_BEFORE ? -1L : 1L);
        }
    }

    /** Counts pairs of a band whose keys lie in one cell; left tuples are in three, so each pair is found once. */
    static final class CountBand extends ProcessJoinFunction<Long[], Long[], Long> {
        private final LongCounter pairs = new LongCounter();
        private final long band;

        CountBand(long band) {
            this.band = band;
        }

        @Override
        public void open(OpenContext context) {
            getRuntimeContext().addAccumulator(PAIRS, pairs);
        }

        @Override
        public void processElement(Long[] left, Long[] right, Context context, Collector<Long> out) {
            if (Math.abs(left[1] - right[1]) <= band) {
                pairs.add(1L);
            }
        }
    }

    /** Both sides' tuples of the window, by value and then in the order of time; what the watermark has passed goes. */
    static final class SortedMaps extends CoProcessFunction<Event, Event, Long> {
        private final LongCounter pairs = new LongCounter();
        private final long within;
        private final long band;
        private transient TreeMap<Long, ArrayDeque<Long>>[] held;
        private transient ArrayDeque<long[]>[] order;

        SortedMaps(long within, long band) {
            this.within = within;
            this.band = band;
        }

        @Override
        @SuppressWarnings("unchecked")
        public void open(OpenContext context) {
            getRuntimeContext().addAccumulator(PAIRS, pairs);
            held = new TreeMap[] {new TreeMap<Long, ArrayDeque<Long>>(), new TreeMap<Long, ArrayDeque<Long>>()};
            order = new ArrayDeque[] {new ArrayDeque<long[]>(), new ArrayDeque<long[]>()};
        }

        @Override
        public void processElement1(Event left, Context context, Collector<Long> out) {
            join(0, left, context.timerService().currentWatermark());
        }

        @Override
        public void processElement2(Event right, Context context, Collector<Long> out) {
            join(1, right, context.timerService().currentWatermark());
        }

        private void join(int side, Event event, long watermark) {
            for (int i = 0; i < 2; i++) {
                while (!order[i].isEmpty() && order[i].peekFirst()[0] + within < watermark) {
                    long key = order[i].pollFirst()[1];
                    ArrayDeque<Long> times = held[i].get(key);
                    times.pollFirst();
                    if (times.isEmpty()) {
                        held[i].remove(key);
                    }
                }
            }
            long found = 0;
            for (ArrayDeque<Long> times : held[1 - side].subMap(event.key - band, true, event.key + band, true).values()) {
                for (long ts : times) {
                    if (Math.abs(ts - event.ts) <= within) {
                        found++;
                    }
                }
            }
            pairs.add(found);
            held[side].computeIfAbsent(event.key, key -> new ArrayDeque<>()).addLast(event.ts);
            order[side].addLast(new long[] {event.ts, event.key});
        }
    }

    /** Takes the join's (empty) output. */
    static final class Nothing extends RichSinkFunction<Long> {
        @Override
        public void invoke(Long value, Context context) {}
    }

    static JobGraph dataStream(StreamExecutionEnvironment env, DataStream<Event> left, DataStream<Event> right, long within) {
        left.keyBy(event -> event.key, Types.LONG)
                .intervalJoin(right.keyBy(event -> event.key, Types.LONG))
                .between(Duration.ofMillis(-within), Duration.ofMillis(within))
                .process(new CountPairs(), Types.LONG)
                .addSink(new Nothing());
        return env.getStreamGraph().getJobGraph();
    }

    static JobGraph cells(StreamExecutionEnvironment env, DataStream<Event> left, DataStream<Event> right, long within, long band) {
        long width = band + 1;
        DataStream<Long[]> lefts =
                left.<Long[]>flatMap(
                                (event, out) -> {
                                    long cell = Math.floorDiv(event.key, width);
                                    for (long near = cell - 1; near <= cell + 1; near++) {
                                        out.collect(new Long[] {near, event.key});
                                    }
                                })
                        .returns(Types.OBJECT_ARRAY(Types.LONG));
        DataStream<Long[]> rights =
                right.map(event -> new Long[] {Math.floorDiv(event.key, width), event.key}).returns(Types.OBJECT_ARRAY(Types.LONG));
        lefts.keyBy(pair -> pair[0], Types.LONG)
                .intervalJoin(rights.keyBy(pair -> pair[0], Types.LONG))
                .between(Duration.ofMillis(-within), Duration.ofMillis(within))
                .process(new CountBand(band), Types.LONG)
                .addSink(new Nothing());
        return env.getStreamGraph().getJobGraph();
    }

    static JobGraph broadcast(
            StreamExecutionEnvironment env, DataStream<Event> left, DataStream<Event> right, long within, long band) {
        left.rebalance()
                .connect(right.broadcast())
                .process(new SortedMaps(within, band), Types.LONG)
                .addSink(new Nothing());
        return env.getStreamGraph().getJobGraph();
    }

    static JobGraph sql(
            StreamExecutionEnvironment env, DataStream<Event> left, DataStream<Event> right, long within, long band) {
        StreamTableEnvironment tables = StreamTableEnvironment.create(env);
        int index = 0;
        for (DataStream<Event> side : Arrays.asList(left, right)) {
            TypeInformation<Row> key = Types.ROW_NAMED(new String[] {"k"}, Types.LONG);
            DataStream<Row> rows = side.map(event -> Row.of(event.key)).returns(key);
            Schema schema =
                    Schema.newBuilder()
                            .column("k", "BIGINT NOT NULL")
                            .columnByMetadata("ts", "TIMESTAMP_LTZ(3)", "rowtime", true)
                            .watermark("ts", "SOURCE_WATERMARK()")
                            .build();
            tables.createTemporaryView(index++ == 0 ? "l" : "r", rows, schema);
        }
        String bound = interval(within);
        String keys = band == 0 ? "l.k = r.k" : "r.k BETWEEN l.k - " + band + " AND l.k + " + band;
        Table pairs =
                tables.sqlQuery(
                        "SELECT l.k FROM l JOIN r ON " + keys + " AND r.ts BETWEEN l.ts - " + bound + " AND l.ts + " + bound);
        tables.toDataStream(pairs).addSink(new CountRows());
        return env.getStreamGraph().getJobGraph();
    }

    private static String interval(long millis) {
        Duration span = Duration.ofMillis(millis);
        return String.format(
                "INTERVAL '%d %02d:%02d:%02d.%03d' DAY TO SECOND(3)",
                span.toDaysPart(), span.toHoursPart(), span.toMinutesPart(), span.toSecondsPart(), span.toMillisPart());
    }

    /** The star of three streams. Times of the tuples are the column t; of event time only interval joins have one. */
    static JobGraph star(StreamExecutionEnvironment env, List<DataStream<Event>> sides, long within, boolean intervals) {
        StreamTableEnvironment tables = StreamTableEnvironment.create(env);
        tables.getConfig().set("table.optimizer.multi-join.enabled", String.valueOf(!intervals));
        for (int i = 0; i < sides.size(); i++) {
            TypeInformation<Row> kind = Types.ROW_NAMED(new String[] {"k", "t"}, Types.LONG, Types.LONG);
            DataStream<Row> rows = sides.get(i).map(event -> Row.of(event.key, event.ts)).returns(kind);
            Schema.Builder schema = Schema.newBuilder().column("k", "BIGINT NOT NULL").column("t", "BIGINT NOT NULL");
            if (intervals) {
                schema.columnByMetadata("ts", "TIMESTAMP_LTZ(3)", "rowtime", true).watermark("ts", "SOURCE_WATERMARK()");
            }
            tables.createTemporaryView(new String[] {"a", "b", "c"}[i], rows, schema.build());
        }
        String near = "%2$s.t BETWEEN %1$s.t - " + within + " AND %1$s.t + " + within;
        String first = String.format(near, "a", "b");
        String second = String.format(near, "a", "c");
        if (intervals) {
            String bound = interval(within);
            first = "b.ts BETWEEN a.ts - " + bound + " AND a.ts + " + bound;
            second = "c.ts BETWEEN a.ts - " + bound + " AND a.ts + " + bound;
        }
        String text = "SELECT a.k FROM a JOIN b ON a.k = b.k AND " + first + " JOIN c ON a.k = c.k AND " + second;
        Table found = tables.sqlQuery(text + " AND " + String.format(near, "b", "c"));
        if (!intervals && !found.explain().contains("MultiJoin")) {
            throw new IllegalStateException("the plan has no MultiJoin: " + found.explain());
        }
        tables.toChangelogStream(found).addSink(new CountRows());
        return env.getStreamGraph().getJobGraph();
    }

    public static void main(String[] args) throws Exception {
        String[] paths = args[0].split(",");
        long within = Long.parseLong(args[1]);
        int runs = Integer.parseInt(args[2]);
        String api = args[3];
        int parallelism = Integer.parseInt(args[4]);
        int sources = Integer.parseInt(args[5]);
        int every = Integer.parseInt(args[6]);
        long band = Long.parseLong(args[7]);
        Configuration settings = new Configuration();
        settings.set(StateBackendOptions.STATE_BACKEND, "hashmap");
        settings.set(RestartStrategyOptions.RESTART_STRATEGY, "none");
        settings.set(TaskManagerOptions.NETWORK_MEMORY_MIN, MemorySize.ofMebiBytes(128));
        settings.set(TaskManagerOptions.NETWORK_MEMORY_MAX, MemorySize.ofMebiBytes(128));
        settings.set(TaskManagerOptions.MANAGED_MEMORY_SIZE, MemorySize.ofMebiBytes(128));
        settings.setString("rest.bind-port", "0");
        String[] addresses = {"rest.address", "rest.bind-address", "jobmanager.bind-host", "taskmanager.bind-host"};
        for (String part : addresses) {
            settings.setString(part, "127.0.0.1");
        }
        MiniClusterConfiguration shape =
                new MiniClusterConfiguration.Builder()
                        .setConfiguration(settings)
                        .setNumTaskManagers(1)
                        .setNumSlotsPerTaskManager(parallelism)
                        .build();
        var system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        try (MiniCluster cluster = new MiniCluster(shape)) {
            cluster.start();
            for (int run = 0; run < runs; run++) {
                StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(settings);
                env.setParallelism(parallelism);
                env.setBufferTimeout(-1);
                env.getConfig().enableObjectReuse();
                env.getConfig().setAutoWatermarkInterval(0);
                env.getConfig().setLatencyTrackingInterval(0);
                DataStream<Event> source =
                        env.addSource(new Merged(paths, every), "merged", new EventType()).setParallelism(sources);
                List<DataStream<Event>> sides = new ArrayList<>();
                for (int i = 0; i < paths.length; i++) {
                    int side = i; // the same parallelism, so that source and filters are one chain
                    sides.add(source.filter(event -> event.side == side).setParallelism(sources));
                }
                DataStream<Event> left = sides.get(0);
                DataStream<Event> right = sides.get(1);
                JobGraph job;
                if (paths.length > 2) {
                    job = star(env, sides, within, api.equals("intervals"));
                } else if (api.equals("sql")) {
                    job = sql(env, left, right, within, band);
                } else if (api.equals("broadcast")) {
                    job = broadcast(env, left, right, within, band);
                } else {
                    job = band == 0 ? dataStream(env, left, right, within) : cells(env, left, right, within, band);
                }
                System.gc();
                long cpu = system.getProcessCpuTime();
                long start = System.nanoTime();
                JobExecutionResult result = cluster.executeJobBlocking(job);
                double seconds = (System.nanoTime() - start) / 1e9;
                double busy = (system.getProcessCpuTime() - cpu) / 1e9;
                Long pairs = result.getAccumulatorResult(PAIRS);
                System.out.println("RUN " + seconds + " " + busy + " " + pairs);
            }
        }
    }
}
