#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "messages/base/error.hpp"

namespace troupe::apps {

/// What ran when on which thread, for chrome://tracing or Perfetto. Safe from any thread.
class trace {
 public:
  using clock = std::chrono::steady_clock;

  /// Records the time between its making and its end.
  class span {
   public:
    span(trace& in, std::string name) : in_(in), name_(std::move(name)) {}
    span(const span&) = delete;
    span& operator=(const span&) = delete;
    ~span() { in_.add(std::move(name_), start_, clock::now()); }

   private:
    trace& in_;
    std::string name_;
    clock::time_point start_ = clock::now();
  };

  /// Writes everything recorded. Errors: io_failed naming the file.
  [[nodiscard]] result<void> write(const std::filesystem::path& file) const;

 private:
  struct event {
    std::string name;
    std::int64_t thread = 0;
    clock::time_point start;
    clock::time_point end;
  };

  void add(std::string name, clock::time_point start, clock::time_point end);

  const clock::time_point begin_ = clock::now();
  mutable std::mutex mutex_;
  std::vector<event> events_;
};

}  // namespace troupe::apps
