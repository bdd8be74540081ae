#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/collective/port.hpp"

/// Ports of two ranks that note which of the two has begun each transfer first.
namespace troupe::tests {

/// Of all groups of a maker. Thread-safe.
class transfer_log {
 public:
  /// A rank asks its port for its next transfer.
  void asked(const std::string& name, std::uint32_t rank) {
    const std::scoped_lock lock(mutex_);
    auto& of = groups_[name];
    const auto number = of.asked.at(rank)++;
    const bool is_second = of.begun.at(1 - rank) > number;
    if (number > 0 && !is_second) of.first.insert(rank);
  }

  /// Its device has been given the oldest that has not been begun.
  void begun(const std::string& name, std::uint32_t rank) {
    const std::scoped_lock lock(mutex_);
    ++groups_[name].begun.at(rank);
  }

  /// By the groups' names, which ranks have asked for a transfer that the other one had not begun,
  /// but for the first of all, by which the two are connected.
  [[nodiscard]] std::map<std::string, std::set<std::uint32_t>> first() const {
    const std::scoped_lock lock(mutex_);
    std::map<std::string, std::set<std::uint32_t>> all;
    for (const auto& [name, of] : groups_) all[name] = of.first;
    return all;
  }

 private:
  struct group {
    std::array<std::uint64_t, 2> asked{}, begun{};
    std::set<std::uint32_t> first = {};
  };
  mutable std::mutex mutex_;
  std::map<std::string, group> groups_;
};

class watched_port final : public engine::collective_port {
 public:
  watched_port(std::string name, std::shared_ptr<engine::collective_port> own,
               std::shared_ptr<transfer_log> log)
      : name_(std::move(name)), log_(std::move(log)), own_(std::move(own)) {}

  [[nodiscard]] std::uint32_t rank() const noexcept override { return own_->rank(); }
  [[nodiscard]] std::uint32_t ranks() const noexcept override { return own_->ranks(); }
  using collective_port::submit;
  void submit(std::vector<engine::collective_operation> group, done ended, started begun) override {
    log_->asked(name_, rank());
    own_->submit(std::move(group), std::move(ended),
                 [name = name_, own = rank(), log = log_, told = std::move(begun)] {
                   log->begun(name, own);
                   if (told) told();
                 });
  }
  void lose(error why) override { own_->lose(std::move(why)); }

 private:
  const std::string name_;
  const std::shared_ptr<transfer_log> log_;
  const std::shared_ptr<engine::collective_port> own_;
};

/// Makes the ports of another maker, all groups of which have two ranks.
class watched_maker final : public engine::collective_maker {
 public:
  explicit watched_maker(std::shared_ptr<const engine::collective_maker> own)
      : own_(std::move(own)) {}

  [[nodiscard]] result<std::string> library_for(c10::Device on) const override {
    return own_->library_for(on);
  }
  [[nodiscard]] std::optional<engine::socket_reach> sockets() const override {
    return own_->sockets();
  }
  [[nodiscard]] result<std::string> invite(std::uint32_t ranks, engine::socket_reach sockets,
                                           c10::Device on) const override {
    return own_->invite(ranks, sockets, on);
  }
  [[nodiscard]] result<std::shared_ptr<engine::collective_port>> join(
      const engine::collective_place& place) const override {
    auto joined = own_->join(place);
    if (!joined) return joined;
    return std::make_shared<watched_port>(place.name, std::move(*joined), log_);
  }

  [[nodiscard]] const transfer_log& log() const { return *log_; }

 private:
  const std::shared_ptr<const engine::collective_maker> own_;
  const std::shared_ptr<transfer_log> log_ = std::make_shared<transfer_log>();
};

}  // namespace troupe::tests
