#include "cluster/doctor/edges/channel.hpp"

#include <algorithm>
#include <chrono>

namespace troupe::cluster::doctor {
namespace {

using clock = std::chrono::steady_clock;

constexpr double latency_seconds = 0.1;
constexpr double rate_seconds = 0.15;
constexpr int warm_up = 5;
constexpr int least_trips = 5;
constexpr int most_trips = 2000;
constexpr std::size_t block_bytes = std::size_t{1} << 20;
constexpr int most_blocks = 512;

double seconds_since(clock::time_point begin) {
  return std::chrono::duration<double>(clock::now() - begin).count();
}

result<double> round_trip_us(channel& by) {
  if (auto warm = by.round_trips(warm_up); !warm) return tl::unexpected(warm.error());
  auto begin = clock::now();
  if (auto first = by.round_trips(least_trips); !first) return tl::unexpected(first.error());
  const double each = std::max(seconds_since(begin) / least_trips, 1e-7);
  const int count = std::clamp(static_cast<int>(latency_seconds / each), least_trips, most_trips);
  begin = clock::now();
  if (auto all = by.round_trips(count); !all) return tl::unexpected(all.error());
  return seconds_since(begin) / count * 1e6;
}

result<double> megabytes_per_second(channel& by) {
  for (int count = 1;; count *= 2) {
    const auto begin = clock::now();
    if (auto sent = by.push(block_bytes, count); !sent) return tl::unexpected(sent.error());
    const double seconds = seconds_since(begin);
    if (seconds >= rate_seconds || count >= most_blocks)
      return static_cast<double>(block_bytes) * count / std::max(seconds, 1e-9) / 1e6;
  }
}

}  // namespace

flow_facts measure(channel& by, const std::string& name,
                   const std::function<void(const flow_facts&)>& so_far) {
  flow_facts out{.by = name};
  const auto trip = round_trip_us(by);
  if (!trip) {
    out.error = trip.error().text;
    return out;
  }
  out.round_trip_us = *trip;
  so_far(out);
  const auto rate = megabytes_per_second(by);
  if (rate) {
    out.megabytes_per_second = *rate;
  } else {
    out.error = rate.error().text;
  }
  return out;
}

}  // namespace troupe::cluster::doctor
