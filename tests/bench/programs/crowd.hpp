#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <deque>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "messages/descriptor.hpp"
#include "messages/link/cluster_secret.hpp"
#include "messages/link/seal/handshake.hpp"

namespace troupe::bench {

/// What strangers say when they have connected, by name.
struct saying {
  std::string name;
  std::vector<std::byte> bytes;
};

inline std::vector<saying> sayings_of_strangers() {
  using messages::handshake;
  using messages::key_share;
  const auto bytes = [](const auto& value) {
    const auto view = std::as_bytes(std::span(&value, 1));
    return std::vector<std::byte>(view.begin(), view.end());
  };
  const auto and_then = [](std::vector<std::byte> first, const std::vector<std::byte>& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  };
  std::vector<std::byte> garbage(200);
  messages::fill_random(garbage);
  std::array<std::byte, 64> random;
  messages::fill_random(random);
  const auto hello = handshake(handshake::role::connects, key_share::make({}, random)).hello();
  const std::vector<std::byte> whole = bytes(hello);
  auto proof = hello;
  proof.kind = static_cast<std::uint8_t>(messages::wire::handshake_kind::proof);
  const std::uint64_t ucx_magic = 0xCAFEBABE12345678;  // with which its tcp connections begin
  return {{"silent", {}},
          {"byte", {whole[0]}},
          {"garbage", garbage},
          {"ucx", and_then(bytes(ucx_magic), garbage)},
          {"half", {whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(whole.size() / 2)}},
          {"hello", whole},
          {"proof", and_then(whole, bytes(proof))}};
}

/// Strangers who connect to ports of loopback at a steady rate, each port and each saying in turn,
/// and hold their connections until seconds later. It has a thread of its own.
class crowd {
 public:
  enum class goes : std::uint8_t { nowhere, elsewhere, here };

  /// `elsewhere`: as many ports as `here`, at which nobody takes anybody in.
  crowd(std::vector<int> here, std::vector<int> elsewhere, std::vector<saying> says,
        double a_second)
      : here_(std::move(here)),
        elsewhere_(std::move(elsewhere)),
        says_(std::move(says)),
        a_second_(a_second) {
    rlimit files{};
    ::getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
    thread_ = std::thread([this] { run(); });
  }
  crowd(const crowd&) = delete;
  crowd& operator=(const crowd&) = delete;
  ~crowd() {
    ended_ = true;
    send(goes::here);
    thread_.join();
  }

  void send(goes where) {
    goes_ = where;
    goes_.notify_one();
  }
  /// Connections that were made.
  [[nodiscard]] long made() const { return made_; }

 private:
  using clock = std::chrono::steady_clock;
  static constexpr auto hold = std::chrono::seconds(2);

  void run() {
    while (!ended_) {
      goes_.wait(goes::nowhere);
      const auto began = clock::now();
      for (long due = 1; goes_ != goes::nowhere && !ended_; ++due) {
        connect_one(goes_ == goes::here ? here_ : elsewhere_);
        const auto now = clock::now();
        while (!held_.empty() && now - held_.front().since > hold) held_.pop_front();
        std::this_thread::sleep_until(
            began + std::chrono::duration_cast<clock::duration>(
                        std::chrono::duration<double>(static_cast<double>(due) / a_second_)));
      }
      held_.clear();
    }
  }

  void connect_one(const std::vector<int>& ports) {
    const std::size_t turn = turn_++;
    descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    where.sin_port = htons(static_cast<std::uint16_t>(ports[turn % ports.size()]));
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&where), sizeof(where)) != 0 &&
        errno != EINPROGRESS) {
      return;
    }
    const auto& says = says_[turn / ports.size() % says_.size()].bytes;
    // On loopback a connection stands when the call returns, unless nobody takes it in.
    if (!says.empty() && ::send(socket.get(), says.data(), says.size(), MSG_NOSIGNAL) < 0) return;
    ++made_;
    held_.push_back({clock::now(), std::move(socket)});
  }

  struct held {
    clock::time_point since;
    descriptor socket;
  };

  const std::vector<int> here_;
  const std::vector<int> elsewhere_;
  const std::vector<saying> says_;
  const double a_second_;
  std::size_t turn_ = 0;
  std::deque<held> held_;
  std::atomic<goes> goes_ = goes::nowhere;
  std::atomic<bool> ended_ = false;
  std::atomic<long> made_ = 0;
  std::thread thread_;
};

}  // namespace troupe::bench
