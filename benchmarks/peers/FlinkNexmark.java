import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
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
import org.apache.flink.table.types.logical.LogicalTypeFamily;
import org.apache.flink.table.types.logical.LogicalTypeRoot;
import org.apache.flink.table.types.logical.RowType;

/**
 * Runs queries of Flink SQL over columns in memory, in streaming mode, as lines of stdin ask for them.
 *
 * <p>"CHECK query rows" runs the text of the file query and writes its rows as text to the files rows.0, rows.1, one a subtask;
 * "TIME query" counts the rows alone. Each is answered with a line "RUN seconds count" or "FAILED reason". A run is timed from
 * submission to its end on a running cluster; parsing and planning come before.
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

    /** Counts rows; with a path, writes them too: a line each, values apart by tabs, times in microseconds, null as \N. */
    static final class Count extends RichSinkFunction<RowData> {
        private final LongCounter rows = new LongCounter();
        private final String path;
        private final RowType type;
        private transient RowData.FieldGetter[] fields;
        private transient OutputStream out;

        Count(String path, RowType type) {
            this.path = path;
            this.type = type;
        }

        @Override
        public void open(OpenContext context) throws IOException {
            getRuntimeContext().addAccumulator(ROWS, rows);
            if (!path.isEmpty()) {
                fields = new RowData.FieldGetter[type.getFieldCount()];
                for (int at = 0; at < fields.length; at++) {
                    fields[at] = RowData.createFieldGetter(type.getTypeAt(at), at);
                }
                Path file = Path.of(path + "." + getRuntimeContext().getTaskInfo().getIndexOfThisSubtask());
                out = new BufferedOutputStream(Files.newOutputStream(file), 1 << 16);
            }
        }

        @Override
        public void invoke(RowData row, Context context) throws IOException {
            rows.add(1L);
            if (out == null) {
                return;
            }
            StringBuilder line = new StringBuilder();
            for (RowData.FieldGetter field : fields) {
                Object value = field.getFieldOrNull(row);
                if (value instanceof TimestampData) {
                    TimestampData time = (TimestampData) value;
                    value = time.getMillisecond() * 1_000 + time.getNanoOfMillisecond() / 1_000;
                }
                line.append(line.length() == 0 ? "" : "\t").append(value == null ? "\\N" : value);
            }
            out.write(line.append('\n').toString().getBytes(StandardCharsets.UTF_8));
        }

        @Override
        public void close() throws IOException {
            if (out != null) {
                out.close();
            }
        }
    }

    /** Takes rows that are never taken back; a query that updates its rows is refused by the planner. */
    static final class CountSink implements DynamicTableSink {
        private final String path;
        private final RowType type;

        CountSink(String path, RowType type) {
            this.path = path;
            this.type = type;
        }

        @Override
        public ChangelogMode getChangelogMode(ChangelogMode requested) {
            return ChangelogMode.insertOnly();
        }

        @Override
        public SinkRuntimeProvider getSinkRuntimeProvider(Context context) {
            return SinkFunctionProvider.of(new Count(path, type));
        }

        @Override
        public DynamicTableSink copy() {
            return new CountSink(path, type);
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
            return new CountSink(path(context), (RowType) type.getLogicalType());
        }

        private static String path(Context context) {
            return context.getCatalogTable().getOptions().getOrDefault(PATH.key(), "");
        }
    }

    static JobGraph job(Configuration settings, String statements, int parallelism, String query, String path) {
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
        set.addInsert(TableDescriptor.forConnector("columns").option(PATH, path).build(), rows);
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
                    String query = Files.readString(Path.of(words[1]));
                    JobGraph job = job(settings, statements, parallelism, query, words[0].equals("CHECK") ? words[2] : "");
                    System.gc();
                    long start = System.nanoTime();
                    JobExecutionResult result = cluster.executeJobBlocking(job);
                    double seconds = (System.nanoTime() - start) / 1e9;
                    Long rows = result.getAccumulatorResult(ROWS);
                    System.out.println("RUN\t" + seconds + "\t" + rows);
                } catch (Exception | LinkageError error) {
                    error.printStackTrace();
                    System.out.println("FAILED\t" + reason(error));
                }
            }
        }
    }
}
