import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.flink.api.common.JobExecutionResult;
import org.apache.flink.api.common.accumulators.LongCounter;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.configuration.ConfigOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.core.memory.MemorySegment;
import org.apache.flink.core.memory.MemorySegmentFactory;
import org.apache.flink.legacy.table.connector.source.SourceFunctionProvider;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.legacy.RichSinkFunction;
import org.apache.flink.streaming.api.functions.source.legacy.RichParallelSourceFunction;
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.table.api.Table;
import org.apache.flink.table.api.TableDescriptor;
import org.apache.flink.table.api.bridge.java.StreamStatementSet;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.table.connector.sink.DynamicTableSink;
import org.apache.flink.table.connector.sink.legacy.SinkFunctionProvider;
import org.apache.flink.table.connector.source.DynamicTableSource;
import org.apache.flink.table.connector.source.LookupTableSource;
import org.apache.flink.table.connector.source.ScanTableSource;
import org.apache.flink.table.connector.source.abilities.SupportsProjectionPushDown;
import org.apache.flink.table.connector.source.abilities.SupportsSourceWatermark;
import org.apache.flink.table.connector.source.lookup.LookupFunctionProvider;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.data.binary.BinaryStringData;
import org.apache.flink.table.factories.DynamicTableSinkFactory;
import org.apache.flink.table.factories.DynamicTableSourceFactory;
import org.apache.flink.table.functions.FunctionContext;
import org.apache.flink.table.functions.LookupFunction;
import org.apache.flink.table.types.DataType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.LogicalTypeFamily;
import org.apache.flink.table.types.logical.LogicalTypeRoot;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.TimestampType;

/**
 * Runs queries of Flink SQL over columns in memory, in streaming mode, as lines of stdin ask for them.
 *
 * <p>"CHECK query ..." and "TIME query" run the text of the file query and count and digest its rows; each is answered with a
 * line "RUN seconds count digest" or "FAILED reason". A run is timed from submission to its end on a running cluster; parsing
 * and planning come before.
 *
 * <p>Tables: a file of statements, whose connector is "columns", a folder with a file of little-endian longs for a column
 * (BIGINT, TIMESTAMP in microseconds), or for a text its bytes and where each begins. nexmark_flink.py makes them. The source
 * reads the columns that a query needs, gives rows of Flink's internal form, whose texts are slices of the column, and says its
 * watermarks by itself. Not here: checkpoints, restarts, Parquet, the comparison of rows.
 *
 * <p>Arguments: statements parallelism.
 */
public final class FlinkNexmark {
    static final String ROWS = "rows";
    static final String DIGEST = "digest";
    static final long WATERMARK_US = 100_000; // of event time between two watermarks
    static final ConfigOption<String> PATH = ConfigOptions.key("path").stringType().defaultValue("");

    private FlinkNexmark() {}

    /** A column in memory, of numbers or of texts; those that were read once stay. */
    static final class Column {
        private static final Map<String, Column> READ = new ConcurrentHashMap<>();
        final long[] numbers; // values, or where each text begins, and the end of the last one
        final MemorySegment[] texts;

        private Column(long[] numbers, byte[] texts) {
            this.numbers = numbers;
            this.texts = texts == null ? null : new MemorySegment[] {MemorySegmentFactory.wrap(texts)};
        }

        static Column of(String table, String name, boolean text) {
            return READ.computeIfAbsent(table + "/" + name, path -> read(Path.of(path), text));
        }

        private static Column read(Path path, boolean text) {
            try (FileChannel file = FileChannel.open(path)) {
                ByteBuffer all = file.map(FileChannel.MapMode.READ_ONLY, 0, file.size());
                long[] numbers = new long[(int) (file.size() / 8)];
                all.order(ByteOrder.LITTLE_ENDIAN).asLongBuffer().get(numbers);
                return new Column(numbers, text ? Files.readAllBytes(Path.of(path + ".texts")) : null);
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
        }

        int rows() {
            return texts == null ? numbers.length : numbers.length - 1;
        }

        Object at(int row, boolean time) {
            if (texts != null) {
                return BinaryStringData.fromAddress(texts, (int) numbers[row], (int) (numbers[row + 1] - numbers[row]));
            }
            return time ? (Object) TimestampData.fromEpochMillis(numbers[row] / 1_000) : (Object) numbers[row];
        }
    }

    static Column[] columns(String table, RowType type) {
        Column[] out = new Column[type.getFieldCount()];
        for (int at = 0; at < out.length; at++) {
            out[at] = Column.of(table, type.getFieldNames().get(at), type.getTypeAt(at).is(LogicalTypeRoot.VARCHAR));
        }
        return out;
    }

    static boolean[] times(RowType type) {
        boolean[] out = new boolean[type.getFieldCount()];
        for (int at = 0; at < out.length; at++) {
            out[at] = type.getTypeAt(at).is(LogicalTypeFamily.TIMESTAMP);
        }
        return out;
    }

    static RowData row(Column[] columns, boolean[] times, int at) {
        GenericRowData out = new GenericRowData(columns.length);
        for (int field = 0; field < columns.length; field++) {
            out.setField(field, columns[field].at(at, times[field]));
        }
        return out;
    }

    /** Of s subtasks, the i-th gives the rows i, i + s, i + 2s, ... */
    static final class Scan extends RichParallelSourceFunction<RowData> {
        private final String table;
        private final RowType type;
        private final boolean timed;
        private volatile boolean running = true;

        Scan(String table, RowType type) {
            this.table = table;
            this.type = type;
            this.timed = Files.exists(Path.of(table, "date_time"));
            columns(table, type);
        }

        @Override
        public void run(SourceContext<RowData> out) {
            int step = getRuntimeContext().getTaskInfo().getNumberOfParallelSubtasks();
            Column[] columns = columns(table, type);
            boolean[] times = times(type);
            long[] time = timed ? Column.of(table, "date_time", false).numbers : null;
            int end = time == null ? columns[0].rows() : time.length;
            long said = Long.MIN_VALUE / 2;
            for (int at = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask(); running && at < end; at += step) {
                if (time != null && time[at] - said >= WATERMARK_US) {
                    said = time[at];
                    out.emitWatermark(new Watermark(said / 1_000 - 1));
                }
                out.collect(row(columns, times, at));
            }
        }

        @Override
        public void cancel() {
            running = false;
        }
    }

    /** Rows of a static table by their first column, for a lookup join. */
    public static final class Lookup extends LookupFunction {
        private final String table;
        private final RowType type;
        private transient Map<Long, RowData> byKey;

        Lookup(String table, RowType type) {
            this.table = table;
            this.type = type;
        }

        @Override
        public void open(FunctionContext context) {
            Column[] columns = columns(table, type);
            byKey = new HashMap<>();
            for (int at = 0; at < columns[0].rows(); at++) {
                byKey.put(columns[0].numbers[at], row(columns, times(type), at));
            }
        }

        @Override
        public List<RowData> lookup(RowData key) {
            RowData found = byKey.get(key.getLong(0));
            return found == null ? List.of() : List.of(found);
        }
    }

    /** A table of columns in memory, of which a query gets those that it names. */
    static final class ColumnsSource
            implements ScanTableSource, LookupTableSource, SupportsProjectionPushDown, SupportsSourceWatermark {
        private final String table;
        private DataType produced;

        ColumnsSource(String table, DataType produced) {
            this.table = table;
            this.produced = produced;
        }

        @Override
        public ChangelogMode getChangelogMode() {
            return ChangelogMode.insertOnly();
        }

        @Override
        public ScanRuntimeProvider getScanRuntimeProvider(ScanContext context) {
            return SourceFunctionProvider.of(new Scan(table, (RowType) produced.getLogicalType()), true);
        }

        @Override
        public LookupRuntimeProvider getLookupRuntimeProvider(LookupContext context) {
            return LookupFunctionProvider.of(new Lookup(table, (RowType) produced.getLogicalType()));
        }

        @Override
        public boolean supportsNestedProjection() {
            return false;
        }

        @Override
        public void applyProjection(int[][] fields, DataType type) {
            produced = type;
        }

        @Override
        public void applySourceWatermark() {}

        @Override
        public DynamicTableSource copy() {
            return new ColumnsSource(table, produced);
        }

        @Override
        public String asSummaryString() {
            return table;
        }
    }

    /** Counts rows and adds up their hashes, which are those of swjoin/core/row_digests.py. */
    static final class Count extends RichSinkFunction<RowData> {
        private static final long GOLDEN = 0x9E3779B97F4A7C15L;
        private final LongCounter rows = new LongCounter();
        private final LongCounter digest = new LongCounter();
        private final LogicalType[] types;

        Count(RowType type) {
            this.types = type.getChildren().toArray(new LogicalType[0]);
        }

        @Override
        public void open(OpenContext context) {
            getRuntimeContext().addAccumulator(ROWS, rows);
            getRuntimeContext().addAccumulator(DIGEST, digest);
        }

        @Override
        public void invoke(RowData row, Context context) {
            long hash = GOLDEN;
            for (int at = types.length - 1; at >= 0; at--) {
                hash = mixed(value(row, at, types[at]), hash);
            }
            rows.add(1L);
            digest.add(hash);
        }

        private static long value(RowData row, int at, LogicalType type) {
            if (row.isNullAt(at)) {
                return GOLDEN;
            }
            switch (type.getTypeRoot()) {
                case CHAR:
                case VARCHAR:
                    return text((BinaryStringData) row.getString(at));
                case TIMESTAMP_WITHOUT_TIME_ZONE:
                    TimestampData time = row.getTimestamp(at, ((TimestampType) type).getPrecision());
                    return mixed(time.getMillisecond() * 1_000 + time.getNanoOfMillisecond() / 1_000, GOLDEN);
                case DATE:
                    return mixed(row.getInt(at) * 86_400_000_000L, GOLDEN);
                case INTEGER:
                    return mixed(row.getInt(at), GOLDEN);
                case BIGINT:
                    return mixed(row.getLong(at), GOLDEN);
                case DOUBLE:
                    return mixed(Double.doubleToLongBits(row.getDouble(at) + 0.0), GOLDEN);
                default:
                    throw new IllegalArgumentException("no hash for " + type);
            }
        }

        private static long text(BinaryStringData text) {
            text.ensureMaterialized();
            boolean whole = text.getSegments().length == 1;
            MemorySegment bytes = whole ? text.getSegments()[0] : MemorySegmentFactory.wrap(text.toBytes());
            int begin = whole ? text.getOffset() : 0;
            int length = text.getSizeInBytes();
            long hash = GOLDEN;
            int at = 0;
            for (; at + 8 <= length; at += 8) {
                hash = mixed(bytes.getLongLittleEndian(begin + at), hash);
            }
            if (at < length) {
                long word = 0;
                for (int shift = 0; at < length; at++, shift += 8) {
                    word |= (bytes.get(begin + at) & 0xFFL) << shift;
                }
                hash = mixed(word, hash);
            }
            return mixed(length, hash);
        }

        private static long mixed(long word, long hash) {
            long h = word * GOLDEN + hash;
            h = (h ^ (h >>> 33)) * 0xFF51AFD7ED558CCDL;
            h = (h ^ (h >>> 33)) * 0xC4CEB9FE1A85EC53L;
            return h ^ (h >>> 33);
        }
    }

    /** Takes rows that are never taken back; a query that updates its rows is refused by the planner. */
    static final class CountSink implements DynamicTableSink {
        private final RowType type;

        CountSink(RowType type) {
            this.type = type;
        }

        @Override
        public ChangelogMode getChangelogMode(ChangelogMode requested) {
            return ChangelogMode.insertOnly();
        }

        @Override
        public SinkRuntimeProvider getSinkRuntimeProvider(Context context) {
            return SinkFunctionProvider.of(new Count(type));
        }

        @Override
        public DynamicTableSink copy() {
            return new CountSink(type);
        }

        @Override
        public String asSummaryString() {
            return "count";
        }
    }

    /** The connector "columns". */
    public static final class Connector implements DynamicTableSourceFactory, DynamicTableSinkFactory {
        @Override
        public String factoryIdentifier() {
            return "columns";
        }

        @Override
        public Set<ConfigOption<?>> requiredOptions() {
            return Set.of();
        }

        @Override
        public Set<ConfigOption<?>> optionalOptions() {
            return Set.of(PATH);
        }

        @Override
        public DynamicTableSource createDynamicTableSource(Context context) {
            return new ColumnsSource(path(context), context.getCatalogTable().getResolvedSchema().toPhysicalRowDataType());
        }

        @Override
        public DynamicTableSink createDynamicTableSink(Context context) {
            DataType type = context.getCatalogTable().getResolvedSchema().toPhysicalRowDataType();
            return new CountSink((RowType) type.getLogicalType());
        }

        private static String path(Context context) {
            return context.getCatalogTable().getOptions().getOrDefault(PATH.key(), "");
        }
    }

    static JobGraph job(Configuration settings, String statements, int parallelism, String query) {
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(settings);
        env.setParallelism(parallelism);
        env.setBufferTimeout(-1);
        env.getConfig().enableObjectReuse();
        env.getConfig().setAutoWatermarkInterval(0);
        env.getConfig().setLatencyTrackingInterval(0);
        StreamTableEnvironment tables = StreamTableEnvironment.create(env);
        for (String statement : statements.split(";")) {
            if (!statement.isBlank()) {
                tables.executeSql(statement);
            }
        }
        Table rows = tables.sqlQuery(query);
        StreamStatementSet set = tables.createStatementSet();
        set.addInsert(TableDescriptor.forConnector("columns").build(), rows);
        set.attachAsDataStream();
        return env.getStreamGraph().getJobGraph();
    }

    static Configuration settings() {
        Configuration settings = new Configuration();
        settings.set(StateBackendOptions.STATE_BACKEND, "hashmap");
        settings.set(RestartStrategyOptions.RESTART_STRATEGY, "none");
        settings.set(TaskManagerOptions.NETWORK_MEMORY_MIN, MemorySize.ofMebiBytes(128));
        settings.set(TaskManagerOptions.NETWORK_MEMORY_MAX, MemorySize.ofMebiBytes(128));
        settings.set(TaskManagerOptions.MANAGED_MEMORY_SIZE, MemorySize.ofMebiBytes(512));
        settings.setString("rest.bind-port", "0");
        settings.setString("table.local-time-zone", "UTC");
        for (String part : List.of("rest.address", "rest.bind-address", "jobmanager.bind-host", "taskmanager.bind-host")) {
            settings.setString(part, "127.0.0.1");
        }
        return settings;
    }

    static String reason(Throwable error) {
        while (error.getCause() != null) {
            error = error.getCause();
        }
        return error.toString().replaceAll("\\s+", " ");
    }

    public static void main(String[] args) throws Exception {
        String statements = Files.readString(Path.of(args[0]));
        int parallelism = Integer.parseInt(args[1]);
        Configuration settings = settings();
        MiniClusterConfiguration shape =
                new MiniClusterConfiguration.Builder()
                        .setConfiguration(settings)
                        .setNumTaskManagers(1)
                        .setNumSlotsPerTaskManager(parallelism)
                        .build();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (MiniCluster cluster = new MiniCluster(shape)) {
            cluster.start();
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] words = line.split("\t");
                try {
                    JobGraph job = job(settings, statements, parallelism, Files.readString(Path.of(words[1])));
                    System.gc();
                    long start = System.nanoTime();
                    JobExecutionResult result = cluster.executeJobBlocking(job);
                    double seconds = (System.nanoTime() - start) / 1e9;
                    Long rows = result.getAccumulatorResult(ROWS);
                    Long digest = result.getAccumulatorResult(DIGEST);
                    System.out.println(String.format("RUN\t%s\t%d\t%016x", seconds, rows, digest));
                } catch (Exception | LinkageError error) {
                    error.printStackTrace();
                    System.out.println("FAILED\t" + reason(error));
                }
            }
        }
    }
}
