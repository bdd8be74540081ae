#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "cluster/launch/child_process.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Where a line came from.
enum class output_stream : std::uint8_t { out, err };

/// "[name] line", whole, to our own standard output or error.
void print_line(std::string_view name, output_stream stream, std::string_view line);

/// What a group tells its owner, on the group's own thread, one call at a time. A handler may call
/// `stop` and `kill`, but nothing that waits for this thread (`start`, `suspend`, `resume`, `wait`,
/// `terminate_all`, the destructor).
struct group_events {
  /// A child has ended, by itself or because it was told to: once a child, after its last line.
  std::function<void(const child_exit&)> on_exit;
  /// A child wrote a line (without its newline). Empty: `print_line`.
  std::function<void(std::string_view name, output_stream stream, std::string_view line)> on_line;
};

/// Children that live and die with this object. One thread starts them, forwards their output and
/// reaps them; the destructor leaves no child, zombie or thread behind. If this process dies,
/// however it dies, the kernel kills the children.
///
/// A child that is to join a run (child_spec::joins) is missed by nobody before it has. If it is
/// stopped (SIGSTOP) until then for as long as deadlines::stopped, and not by `suspend`, it is
/// killed, and its last word says so (last_word_mark).
class process_group {
 public:
  /// Errors: io_failed (no descriptor left).
  [[nodiscard]] static result<process_group> create(group_events events);

  process_group(process_group&&) noexcept;
  process_group& operator=(process_group&&) noexcept;
  /// Kills what still runs.
  ~process_group();

  /// Starts a child and waits until its program runs. Errors: io_failed naming child and program;
  /// cancelled once the group has been told to stop.
  [[nodiscard]] result<void> start(const child_spec& spec);
  /// The same without waiting: `told` is called with the outcome, on the group's own thread before
  /// anything else is told of that child; on this one if the group has been told to stop. What is
  /// asked for later, as `kill`, is done to it too.
  void begin(child_spec spec, std::function<void(result<void>)> told);

  /// Stops every child (SIGSTOP) with its process group, as when our own job is stopped, and lets
  /// them go on (SIGCONT). They have been told when this returns.
  void suspend();
  void resume();

  /// Sends SIGTERM to every child now, stopped ones too, and SIGKILL after `grace` to those that
  /// still run; does not wait. No child can be started afterwards. Calling again can only shorten
  /// the grace.
  void stop(std::chrono::milliseconds grace);
  /// SIGKILL, now.
  void kill() { stop(std::chrono::milliseconds{0}); }

  /// SIGKILL to the children of one name and what they have started; the others go on. Does not
  /// wait. Nothing happens where no such child runs.
  void kill(std::string name);

  /// Waits until no child runs or is to be started and all ends have been reported; false when
  /// `timeout` passes first.
  [[nodiscard]] bool wait(std::chrono::milliseconds timeout) const;

  /// `stop` and wait for the end of all.
  void terminate_all(std::chrono::milliseconds grace);

 private:
  class watcher;
  explicit process_group(std::unique_ptr<watcher> impl) noexcept;

  std::unique_ptr<watcher> impl_;
};

}  // namespace troupe::cluster
