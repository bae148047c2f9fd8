// A streaming symmetric hash join on one core, as fast as its author could make it: the yardstick for the reference workload.
//
//   reference MODE LEFT.bin RIGHT.bin WITHIN_US REPEATS [BUCKET_LOAD [BAND]]
//
// Joins two streams on equal keys and -W <= right.ts - left.ts <= +W, counts the pairs and sums their digest. The files hold
// little-endian int64 pairs (ts, key) in the order of ts and are read before the clock starts. The tuples are taken one by one
// in the global order of ts: each probes the other side's table, then goes into its own.
//
//   plain    tuple at a time, nothing fetched ahead
//   batched  the same steps in the same order, so no pair is lost or doubled within a batch, but a batch of tuples is merged
//            and hashed at once and its cache lines are fetched before the tuples of the batch before it are done
//   grid     as batched, for keys that differ by at most BAND: a key's bucket is that of its cell of values, as wide as the
//            band at least, and a tuple probes the one or two cells in which its partners lie; BAND 0 is the join on equal keys
//   tree     for the same keys, BiStream's chained index: a red-black tree of values for every tenth of W, dropped whole
//
// State. A directory of bucket pairs (left line, right line), one cache line each: five entries (key, low half of the row id)
// and the link to older lines, which lie in an arena. A line moves to the arena when its five entries are live and a sixth
// comes, so lines are linked from new to old, and behind a line without a live entry all are dead. Within a side, row ids
// ascend with time; so a ring of times of the live rows gives, at each tuple, the first row that is within W of it (found by
// comparing exact 64-bit times), and an entry is in the window if and only if its row id is not below that one. The rows above
// the window do not exist yet, because time order makes the newest tuple the one that probes. Dead entries are overwritten by
// the next insertion into their line; dead arena lines go to a free list, when a probe meets them or by a slow sweep over the
// directory. So memory follows the window, not the stream.
//
// What stays out: disorder, more than one core, payloads, growth of the directory (it is sized before the clock starts to the
// fullest window of the input; a wrong size would cost speed, not pairs). A window holds fewer than 2^31 rows of a side.

#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int kEntries = 5;       // entries of a line
constexpr unsigned kAll = 0x1f;   // all of them
constexpr int kBatch = 128;       // tuples hashed and fetched ahead
constexpr int kAhead = 12;        // tuples by which the second line of a chain is fetched ahead
constexpr int kSweepEvery = 4;    // tuples to one swept bucket
constexpr size_t kPairs = 2048;   // pairs collected before they are digested together

struct Row {
    int64_t ts, key;
};

struct alignas(64) Line {
    int64_t key[kEntries];
    uint32_t id[kEntries];
    uint32_t next;  // line of the arena, 0 for none
};
static_assert(sizeof(Line) == 64);

struct alignas(128) Bucket {
    Line side[2];
};

inline uint64_t mix64(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ULL;
    return x ^ (x >> 33);
}

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ULL;

// What a pair adds to the digest (docs/semantics.md).
inline uint64_t pair_hash(uint64_t left, uint64_t right) { return mix64(left * kGolden + mix64(right * kGolden + kGolden)); }

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "reference: %s\n", what.c_str());
    std::exit(1);
}

// Zeroed memory on huge pages where the system gives them; reserved at once, taken as it is touched.
template <typename T>
class Pages {
  public:
    Pages(size_t count, bool touch) : bytes_((count * sizeof(T) + kHuge - 1) / kHuge * kHuge + kHuge) {
        raw_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (raw_ == MAP_FAILED) fail("no memory");
        madvise(raw_, bytes_, MADV_HUGEPAGE);
        data_ = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(raw_) + kHuge - 1) / kHuge * kHuge);
        if (touch) std::memset(static_cast<void*>(data_), 0, count * sizeof(T));
    }
    ~Pages() { munmap(raw_, bytes_); }
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;
    T& operator[](size_t i) { return data_[i]; }
    T* get() { return data_; }

  private:
    static constexpr size_t kHuge = size_t{2} << 20;
    size_t bytes_;
    void* raw_;
    T* data_;
};

// The times of the live rows of one side, in a ring that grows; the place past the last holds the largest time as a stop.
class Live {
  public:
    explicit Live(size_t rows) : ring_(capacity(rows)), mask_(ring_.size() - 1) { ring_[0] = INT64_MAX; }
    inline void push(int64_t ts) {
        if (next - low + 2 > ring_.size()) [[unlikely]] grow();
        ring_[next & mask_] = ts;
        ring_[++next & mask_] = INT64_MAX;
    }
    // Drops the rows before `bound`. Two steps without a branch, as few tuples end the life of more than two rows of a side.
    inline void expire(int64_t bound) {
        low += ring_[low & mask_] < bound;
        low += ring_[low & mask_] < bound;
        while (ring_[low & mask_] < bound) [[unlikely]] ++low;
    }
    uint64_t low = 0, next = 0;  // row ids: the oldest live one, the one to come

  private:
    static size_t capacity(size_t rows) {
        size_t size = 1024;
        while (size < rows + 2) size *= 2;
        return size;
    }
    void grow() {
        std::vector<int64_t> wider(ring_.size() * 2);
        for (uint64_t i = low; i <= next; ++i) wider[i & (wider.size() - 1)] = ring_[i & mask_];
        ring_.swap(wider);
        mask_ = ring_.size() - 1;
    }
    std::vector<int64_t> ring_;
    uint64_t mask_;
};

template <bool Grid>
class Join {
  public:
    Join(int64_t within, size_t window_rows, int bits, int64_t band)
        : within_(within),
          band_(band),
          cell_bits_(band ? 64 - __builtin_clzll(uint64_t(2 * band)) : 0),
          shift_(64 - bits),
          mask_((uint64_t{1} << bits) - 1),
          directory_(size_t{1} << bits, true),
          limit_(uint32_t(std::min<size_t>(2 * window_rows + 4096, ~0u))),
          arena_(limit_, false),
          live_{Live(window_rows), Live(window_rows)} {
        for (uint64_t b = 0; b <= mask_; ++b)
            for (Line& line : directory_[b].side) std::fill(line.id, line.id + kEntries, ~0u);
        std::memset(static_cast<void*>(arena_.get()), 0, limit_ / 4 * sizeof(Line));
    }

    inline uint64_t bucket(int64_t key) const {
        return Grid ? uint64_t(key >> cell_bits_) & mask_ : (uint64_t(key) * kGolden) >> shift_;
    }

    inline void fetch(int64_t key, uint64_t bucket, int side) {
        __builtin_prefetch(&directory_[bucket].side[side], 1);
        if constexpr (Grid) {
            __builtin_prefetch(&directory_[this->bucket(key - band_)].side[side ^ 1], 1);
            __builtin_prefetch(&directory_[this->bucket(key + band_)].side[side ^ 1], 1);
        } else {
            __builtin_prefetch(&directory_[bucket].side[side ^ 1], 1);
        }
    }

    inline void fetch_chain(int64_t key, uint64_t bucket, int side) {
        const uint64_t first = Grid ? this->bucket(key - band_) : bucket;
        if (const uint32_t next = directory_[first].side[side ^ 1].next) __builtin_prefetch(&arena_[next]);
        if constexpr (Grid) {
            const uint64_t last = this->bucket(key + band_);
            if (const uint32_t next = directory_[last].side[side ^ 1].next) __builtin_prefetch(&arena_[next]);
        }
    }

    inline void step(Row row, int side, uint64_t bucket) {
        live_[0].expire(row.ts - within_);
        live_[1].expire(row.ts - within_);
        Bucket& home = directory_[bucket];
        if constexpr (Grid) {
            const uint64_t first = this->bucket(row.key - band_), last = this->bucket(row.key + band_);
            probe(directory_[first].side[side ^ 1], row.key, live_[side].next, live_[side ^ 1], side);
            if (last != first) probe(directory_[last].side[side ^ 1], row.key, live_[side].next, live_[side ^ 1], side);
        } else {
            probe(home.side[side ^ 1], row.key, live_[side].next, live_[side ^ 1], side);
        }
        insert(home.side[side], row.key, live_[side]);
        live_[side].push(row.ts);
        if (++steps_ % kSweepEvery == 0) sweep();
    }

    void finish() { digest_pairs(); }
    uint64_t count = 0, digest = 0;
    size_t arena_lines() const { return fresh_; }

  private:
    static inline unsigned live_mask(const Line& line, const Live& live) {
#if defined(__AVX512F__) && defined(__AVX512VL__)
        const __m256i ids = _mm256_load_si256(reinterpret_cast<const __m256i*>(&line) + 1);  // lanes 2 to 6
        const __m256i age = _mm256_sub_epi32(ids, _mm256_set1_epi32(int(uint32_t(live.low))));
        const __m256i rows = _mm256_set1_epi32(int(uint32_t(live.next - live.low)));
        return (unsigned(_mm256_cmplt_epu32_mask(age, rows)) >> 2) & kAll;
#else
        const uint32_t low = uint32_t(live.low), rows = uint32_t(live.next - live.low);
        unsigned mask = 0;
        for (int i = 0; i < kEntries; ++i) mask |= unsigned(line.id[i] - low < rows) << i;
        return mask;
#endif
    }

    inline unsigned key_mask(const Line& line, int64_t key) const {
#if defined(__AVX512F__)
        if constexpr (Grid) {
            const __m512i beyond = _mm512_sub_epi64(_mm512_load_si512(&line), _mm512_set1_epi64(key - band_));
            return _mm512_mask_cmple_epu64_mask(kAll, beyond, _mm512_set1_epi64(2 * band_));
        }
        return _mm512_mask_cmpeq_epi64_mask(kAll, _mm512_load_si512(&line), _mm512_set1_epi64(key));
#else
        unsigned mask = 0;
        for (int i = 0; i < kEntries; ++i) mask |= unsigned(uint64_t(line.key[i] - key + band_) <= uint64_t(2 * band_)) << i;
        return mask;
#endif
    }

    inline void probe(Line& head, int64_t key, uint64_t own, const Live& live, int side) {
        for (Line* line = &head;;) {
            const unsigned alive = live_mask(*line, live);
            const unsigned hits = key_mask(*line, key) & alive;
            if (hits) emit(*line, hits, own, live, side);
            const uint32_t next = line->next;
            if (!next) return;
            if (!alive) [[unlikely]] {
                release(line->next);
                return;
            }
            line = &arena_[next];
        }
    }

    inline void emit(const Line& line, unsigned hits, uint64_t own, const Live& live, int side) {
        uint64_t* mine = pairs_[side] + filled_;
        uint64_t* other = pairs_[side ^ 1] + filled_;
#if defined(__AVX512F__) && defined(__AVX512VL__)
        const __m256i ids = _mm256_load_si256(reinterpret_cast<const __m256i*>(&line) + 1);
        const __m256i age = _mm256_sub_epi32(ids, _mm256_set1_epi32(int(uint32_t(live.low))));
        const __m512i wide = _mm512_cvtepu32_epi64(_mm256_maskz_compress_epi32(__mmask8(hits << 2), age));
        _mm512_storeu_si512(other, _mm512_add_epi64(wide, _mm512_set1_epi64(int64_t(live.low))));
        _mm512_storeu_si512(mine, _mm512_set1_epi64(int64_t(own)));
        filled_ += size_t(__builtin_popcount(hits));
#else
        for (; hits; hits &= hits - 1) {
            *mine++ = own;
            *other++ = live.low + uint32_t(line.id[__builtin_ctz(hits)] - uint32_t(live.low));
            ++filled_;
        }
#endif
        if (filled_ > kPairs) digest_pairs();
    }

    void digest_pairs() {
        uint64_t sum = 0;
        for (size_t i = 0; i < filled_; ++i) sum += pair_hash(pairs_[0][i], pairs_[1][i]);
        digest += sum;
        count += filled_;
        filled_ = 0;
    }

    inline void insert(Line& head, int64_t key, const Live& live) {
        unsigned alive = live_mask(head, live);
        if (alive == kAll) {
            const uint32_t place = take();
            arena_[place] = head;
            std::fill(head.id, head.id + kEntries, uint32_t(live.low) - 1);
            head.next = place;
            alive = 0;
        }
        const int slot = __builtin_ctz(~alive);
        head.key[slot] = key;
        head.id[slot] = uint32_t(live.next);
    }

    inline uint32_t take() {
        if (!free_) {
            if (fresh_ == limit_) [[unlikely]] fail("the state outgrew its window");
            return fresh_++;
        }
        const uint32_t place = free_;
        free_ = arena_[place].next;
        return place;
    }

    void release(uint32_t& link) {
        for (uint32_t place = link; place;) {
            const uint32_t next = arena_[place].next;
            arena_[place].next = free_;
            free_ = place;
            place = next;
        }
        link = 0;
    }

    // One bucket in passing: chains end before their first dead line; ids far behind the window stay out of its reach for good.
    inline void sweep() {
        Bucket& bucket = directory_[swept_++ & mask_];
        __builtin_prefetch(&directory_[(swept_ + 16) & mask_]);
        for (int side = 0; side < 2; ++side) {
            Line& head = bucket.side[side];
            const Live& live = live_[side];
            const uint32_t low = uint32_t(live.low);
            for (uint32_t& id : head.id)
                if (low - id - 1 < 1u << 31 && low - id > 1u << 30) [[unlikely]] id = low - 1;
            for (uint32_t* link = &head.next; *link; link = &arena_[*link].next) {
                if (!live_mask(arena_[*link], live)) {
                    release(*link);
                    break;
                }
            }
        }
    }

    int64_t within_, band_;
    int cell_bits_, shift_;
    uint64_t mask_;
    Pages<Bucket> directory_;
    uint32_t limit_;  // lines of the arena: an ample bound, as a line holds five rows of little more than a window
    Pages<Line> arena_;
    Live live_[2];
    uint32_t free_ = 0, fresh_ = 1;
    uint64_t steps_ = 0, swept_ = 0;
    size_t filled_ = 0;
    uint64_t pairs_[2][kPairs + 16];
};

// Merges two streams by time without a branch on the times.
class Merge {
  public:
    Merge(const std::vector<Row>& left, const std::vector<Row>& right)
        : at_{left.data(), right.data()}, end_{left.data() + left.size(), right.data() + right.size()} {}
    inline bool both() const { return at_[0] != end_[0] && at_[1] != end_[1]; }
    inline bool any() const { return at_[0] != end_[0] || at_[1] != end_[1]; }
    inline Row next(int& side) {
        side = both() ? int(at_[1]->ts < at_[0]->ts) : int(at_[0] == end_[0]);
        return *at_[side]++;
    }

  private:
    const Row* at_[2];
    const Row* end_[2];
};

struct Prepared {
    Row row;
    uint64_t bucket;
    int side;
};

template <bool Grid>
void run_plain(Join<Grid>& join, Merge merge) {
    while (merge.any()) {
        int side;
        const Row row = merge.next(side);
        join.step(row, side, join.bucket(row.key));
    }
    join.finish();
}

template <bool Grid>
void run_batched(Join<Grid>& join, Merge merge) {
    Prepared work[2][kBatch + kAhead];
    int sizes[2] = {0, 0};
    const auto prepare = [&](int which) {
        int n = 0;
        for (; n < kBatch && merge.any(); ++n) {
            Prepared& p = work[which][n];
            p.row = merge.next(p.side);
            p.bucket = join.bucket(p.row.key);
            join.fetch(p.row.key, p.bucket, p.side);
        }
        sizes[which] = n;
        for (int i = 0; i < kAhead; ++i) work[which][n + i] = work[which][std::max(n - 1, 0)];  // so that looking ahead is safe
    };
    prepare(0);
    for (int which = 0; sizes[which]; which ^= 1) {
        prepare(which ^ 1);
        const Prepared* batch = work[which];
        for (int i = 0; i < kAhead; ++i) join.fetch_chain(batch[i].row.key, batch[i].bucket, batch[i].side);
        for (int i = 0; i < sizes[which]; ++i) {
            join.fetch_chain(batch[i + kAhead].row.key, batch[i + kAhead].bucket, batch[i + kAhead].side);
            join.step(batch[i].row, batch[i].side, batch[i].bucket);
        }
    }
    join.finish();
}

// The index of the paper: of each side a chain of red-black trees of values, the newest of which takes rows for a tenth of W.
class Chains {
  public:
    Chains(int64_t within, int64_t band) : within_(within), band_(band) {}

    void step(Row row, int side) {
        auto& mine = chains_[side];
        auto& other = chains_[side ^ 1];
        while (!other.empty() && other.front().newest < row.ts - within_) other.pop_front();
        const uint64_t id = ids_[side]++;
        for (const Tree& tree : other) {
            const bool whole = tree.oldest >= row.ts - within_;
            for (auto at = tree.rows.lower_bound(row.key - band_); at != tree.rows.end() && at->first <= row.key + band_; ++at) {
                if (!whole && at->second.first < row.ts - within_) continue;
                digest += side ? pair_hash(at->second.second, id) : pair_hash(id, at->second.second);
                ++count;
            }
        }
        if (mine.empty() || row.ts - mine.back().oldest > within_ / 10) mine.push_back({row.ts, row.ts, {}});
        mine.back().newest = row.ts;
        mine.back().rows.emplace(row.key, std::pair(row.ts, id));
    }
    uint64_t count = 0, digest = 0;
    size_t arena_lines() const { return 0; }

  private:
    struct Tree {
        int64_t oldest, newest;
        std::multimap<int64_t, std::pair<int64_t, uint64_t>> rows;
    };
    int64_t within_, band_;
    std::deque<Tree> chains_[2];
    uint64_t ids_[2] = {0, 0};
};

std::vector<Row> read_rows(const char* path) {
    std::FILE* file = std::fopen(path, "rb");
    if (!file) fail(std::string("cannot open ") + path);
    std::fseek(file, 0, SEEK_END);
    std::vector<Row> rows(size_t(std::ftell(file)) / sizeof(Row));
    std::rewind(file);
    if (std::fread(rows.data(), sizeof(Row), rows.size(), file) != rows.size()) fail(std::string("cannot read ") + path);
    std::fclose(file);
    if (!std::is_sorted(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.ts < b.ts; }))
        fail(std::string("not in the order of time: ") + path);
    return rows;
}

size_t fullest_window(const std::vector<Row>& rows, int64_t within) {
    size_t most = 0;
    for (size_t low = 0, i = 0; i < rows.size(); ++i) {
        while (rows[low].ts < rows[i].ts - within) ++low;
        most = std::max(most, i - low + 1);
    }
    return most;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 6) fail("arguments: plain|batched|grid|tree LEFT.bin RIGHT.bin WITHIN_US REPEATS [BUCKET_LOAD [BAND]]");
    const std::string mode = argv[1];
    if (mode != "plain" && mode != "batched" && mode != "grid" && mode != "tree") fail("mode is plain, batched, grid or tree");
    const std::vector<Row> left = read_rows(argv[2]), right = read_rows(argv[3]);
    const int64_t within = std::atoll(argv[4]);
    const int repeats = std::atoi(argv[5]);
    const double load = argc > 6 ? std::atof(argv[6]) : 1.5;  // live rows of a side to a bucket, at most
    const int64_t band = argc > 7 ? std::atoll(argv[7]) : 0;
    const size_t window = std::max(fullest_window(left, within), fullest_window(right, within));
    int bits = 8;
    while (double(uint64_t{1} << bits) * load < double(window)) ++bits;

    std::string seconds;
    uint64_t count = 0, digest = 0;
    size_t lines = 0;
    const auto timed = [&](int i, auto&& join, auto&& run) {
        const auto start = std::chrono::steady_clock::now();
        run(join, Merge(left, right));
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        if (i && (count != join.count || digest != join.digest)) fail("runs differ");
        count = join.count, digest = join.digest, lines = join.arena_lines();
        seconds += (i ? ", " : "") + std::to_string(took.count());
    };
    for (int i = 0; i < repeats; ++i) {
        if (mode == "plain") timed(i, Join<false>(within, window, bits, 0), [](auto& join, Merge m) { run_plain(join, m); });
        if (mode == "batched") timed(i, Join<false>(within, window, bits, 0), [](auto& join, Merge m) { run_batched(join, m); });
        if (mode == "grid") timed(i, Join<true>(within, window, bits, band), [](auto& join, Merge m) { run_batched(join, m); });
        if (mode == "tree") {
            timed(i, Chains(within, band), [](auto& join, Merge merge) {
                while (merge.any()) {
                    int side;
                    const Row row = merge.next(side);
                    join.step(row, side);
                }
            });
        }
    }
    std::printf("{\"mode\": \"%s\", \"count\": %llu, \"digest\": \"%016llx\", \"seconds\": [%s], \"tuples\": %zu, ",
                mode.c_str(), (unsigned long long)count, (unsigned long long)digest, seconds.c_str(),
                left.size() + right.size());
    std::printf("\"window_rows\": %zu, \"bucket_bits\": %d, \"arena_lines\": %zu}\n", window, bits, lines);
    return 0;
}
