#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace troupe::tests::fake_device {

inline constexpr int device_count = 4;
inline constexpr int streams_per_device = 32;
inline constexpr int stream_count = device_count * streams_per_device;

/// Of each stream, how many of its tasks are known to be over.
using vector_clock = std::array<std::uint64_t, stream_count>;

/// Which task of which stream did something.
struct stamp {
  int stream = -1;  ///< Of all devices; below 0: none did.
  std::uint64_t tick = 0;
  std::string task = {};
};

/// Which tasks of streams come before which, by vector clocks (Lamport 1978, Mattern 1988; as
/// PyTorch's CUDA sanitizer has them), and who uses which memory: two uses of one piece, one of
/// them a write, that nothing orders are a race. All threads of the host count as one. What is
/// never waited for is found whatever the timing was. Not thread-safe; no torch in it.
class order {
 public:
  /// A task begins on a stream: after its earlier ones, and after all that the host has waited for.
  /// Until the next task, uses of this stream are its.
  void begin(int stream, const std::string& task);

  /// What an event that is recorded now stands for.
  [[nodiscard]] vector_clock record(int stream);

  /// Later tasks of the stream come after the event.
  void block(int stream, const vector_clock& event);

  /// The host has waited for an event, or for all tasks of a stream so far.
  void host_waits(const vector_clock& event);
  void host_waits(int stream) { host_waits(clocks_.at(index(stream))); }

  /// Whether that task is over as far as the host, or the stream, can know.
  [[nodiscard]] bool is_known_to_host(const stamp& task) const;
  [[nodiscard]] bool is_known_to(int stream, const stamp& task) const;

  void allocated(const void* memory, int stream);
  /// Another stream than that of its allocation uses the memory: to be freed only after that.
  void recorded(const void* memory, int stream);
  /// The memory goes to whoever asks next on the stream that it was allocated for. A use on another
  /// stream that may not be over, and was not `recorded`, is a race.
  void freed(const void* memory);

  void read(const void* memory, int stream);
  void written(const void* memory, int stream);

  /// Says which tasks nothing orders.
  [[nodiscard]] const std::vector<std::string>& races() const noexcept { return races_; }
  void forget_races() { races_.clear(); }

  /// The stream's task at present.
  [[nodiscard]] stamp now(int stream) const;

 private:
  struct piece {
    int home = 0;
    stamp write = {};
    std::map<int, stamp> reads = {};  // by stream, since the write
    std::set<int> recorded = {};
  };

  static std::size_t index(int stream) { return static_cast<std::size_t>(stream); }
  void expect_order(const stamp& earlier, const char* did, int stream, const char* does);

  std::array<vector_clock, stream_count> clocks_{};
  std::array<std::string, stream_count> tasks_{};
  vector_clock host_{};
  std::map<const void*, piece> pieces_;
  std::vector<std::string> races_;
};

/// "fake:1 stream 3"
[[nodiscard]] std::string name_of_stream(int stream);

}  // namespace troupe::tests::fake_device
