#pragma once

#include <signal.h>
#include <sys/resource.h>

#include <catch2/catch_test_macros.hpp>

namespace troupe::tests {

/// A limit of this process, such as RLIMIT_NOFILE, while this lives.
class lowered_limit {
 public:
  lowered_limit(int of, rlim_t most) : of_(of) {
    REQUIRE(::getrlimit(of_, &before_) == 0);
    const rlimit lower{most, before_.rlim_max};
    REQUIRE(::setrlimit(of_, &lower) == 0);
  }
  lowered_limit(const lowered_limit&) = delete;
  lowered_limit& operator=(const lowered_limit&) = delete;
  ~lowered_limit() { ::setrlimit(of_, &before_); }

 private:
  int of_;
  rlimit before_{};
};

/// What `act` returns under that limit.
template <class Act>
auto under_limit(int of, rlim_t most, Act act) {
  const lowered_limit limit(of, most);
  return act();
}

/// While it lives no file can grow beyond so many bytes: as on a full disk.
class small_files {
 public:
  explicit small_files(rlim_t bytes) : limit_(RLIMIT_FSIZE, bytes) {}
  small_files(const small_files&) = delete;
  small_files& operator=(const small_files&) = delete;
  ~small_files() { ::signal(SIGXFSZ, handler_); }

 private:
  // The system would end the process with a signal.
  const sighandler_t handler_ = ::signal(SIGXFSZ, SIG_IGN);
  const lowered_limit limit_;
};

}  // namespace troupe::tests
