#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>

namespace troupe::tests {

/// Keeps what this process writes to stderr during its lifetime from everybody else.
class heard_stderr {
 public:
  heard_stderr() : own_(::dup(STDERR_FILENO)), file_(::memfd_create("stderr", MFD_CLOEXEC)) {
    REQUIRE(own_ >= 0);
    REQUIRE(::dup2(file_, STDERR_FILENO) == STDERR_FILENO);
  }
  heard_stderr(const heard_stderr&) = delete;
  heard_stderr& operator=(const heard_stderr&) = delete;
  ~heard_stderr() {
    ::dup2(own_, STDERR_FILENO);
    ::close(own_);
    ::close(file_);
  }

  [[nodiscard]] std::string text() const {
    std::string all(1 << 16, '\0');
    const auto bytes = ::pread(file_, all.data(), all.size(), 0);
    all.resize(bytes < 0 ? 0 : static_cast<std::size_t>(bytes));
    return all;
  }

  /// Waits until this text has been written; false if it was not within ten seconds.
  [[nodiscard]] bool says(const std::string& what) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (text().find(what) == std::string::npos) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::yield();
    }
    return true;
  }

 private:
  int own_;
  int file_;
};

}  // namespace troupe::tests
