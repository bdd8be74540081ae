#include "cluster/doctor/examiner.hpp"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "cluster/config/files/secret_file.hpp"
#include "cluster/doctor/edges/link_channel.hpp"
#include "cluster/doctor/edges/raw_socket.hpp"
#include "cluster/doctor/edges/raw_ucx.hpp"
#include "cluster/doctor/facts/facts_text.hpp"
#include "cluster/doctor/host/examine_data.hpp"
#include "cluster/doctor/host/examine_host.hpp"
#include "cluster/hosts/host_addresses.hpp"
#include "cluster/launch/agents/wall_clock.hpp"
#include "cluster/launch/child_process.hpp"

namespace troupe::cluster::doctor {
namespace {

template <class Facts>
void say(const Facts& what) {
  for (const auto& line : lines_of(what)) std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

result<messages::link_options> options_of(const std::string& transport, bool beyond_loopback) {
  auto secret = read_inherited_secret(handed_over_as);
  if (!secret) return tl::unexpected(secret.error());
  messages::link_options out;
  for (const auto each : {messages::link_transport::shm, messages::link_transport::tcp,
                          messages::link_transport::trusted})
    if (name_of(each) == transport) out.transport = each;
  out.secret = std::move(*secret);
  out.beyond_loopback = beyond_loopback;
  return out;
}

result<void> serve(const requests::facts& asked) {
  auto out = examine_host(asked);
  out.clock_ns = wall_clock_ns();
  say(out);
  return {};
}

/// Where a node listens, as serve_as_node has it.
result<std::string> address_to_listen_at(const requests::listen& asked) {
  if (asked.peer.empty()) return asked.wanted;
  return listen_address(asked.wanted, asked.peer);
}

result<void> serve(const requests::listen& asked) {
  const auto where = address_to_listen_at(asked);
  if (!where) return tl::unexpected(where.error());
  auto options = options_of(asked.transport, !is_loopback(*where));
  if (!options) return tl::unexpected(options.error());
  const auto listener = link_listener::open(std::move(*options), *where);
  if (!listener) return tl::unexpected(listener.error());
  edge_facts out;
  out.address = (*listener)->address();
  out.port_range = first_line("/proc/sys/net/ipv4/ip_local_port_range");
  if (const auto tab = out.port_range.find('\t'); tab != std::string::npos)
    out.port_range[tab] = '-';
  say(out);
  for (;;) ::pause();  // its agent ends it
}

const auto say_nothing = [](const flow_facts&) {};

/// On the host that our link has reached: a listener at all addresses of its host offers "0.0.0.0".
result<flow_facts> measure_socket(link_channel& by, const std::string& reached) {
  const auto offer = by.ask_for_raw("");
  if (!offer) return tl::unexpected(offer.error());
  const auto host = address_of_host(host_of(reached));
  if (!host) return tl::unexpected(host.error());
  const auto port = offer->address.substr(offer->address.rfind(':') + 1);
  const auto below = connect_raw_socket(*host + ":" + port, offer->token);
  if (!below) return tl::unexpected(below.error());
  return measure(**below, "a plain socket", say_nothing);
}

result<flow_facts> measure_ucx(link_channel& by, const messages::link_options& options) {
  const auto below = raw_ucx::make(options);
  if (!below) return tl::unexpected(below.error());
  const auto offer = by.ask_for_raw((*below)->address());
  if (!offer) return tl::unexpected(offer.error());
  if (auto reached = (*below)->reach(offer->address); !reached)
    return tl::unexpected(reached.error());
  auto out = measure(**below, "UCX", say_nothing);
  out.by = "UCX over " + (*below)->transports();
  return out;
}

/// What is below our link: UCX where that carries it, and else the network.
flow_facts measure_below(link_channel& by, const messages::link_options& options,
                         const std::string& reached) {
  const auto out = options.transport == messages::link_transport::tcp ? measure_socket(by, reached)
                                                                      : measure_ucx(by, options);
  return out ? *out : flow_facts{.by = {}, .error = out.error().text};
}

result<void> serve(const requests::probe& asked) {
  auto options = options_of(asked.transport, !is_loopback(asked.address));
  if (!options) return tl::unexpected(options.error());
  edge_facts out;
  out.address = asked.address;
  out.ours.by = asked.transport;
  const auto link = link_channel::connect(*options, asked.address);
  if (!link) {
    out.ours.error = link.error().text;
    say(out);
    return {};
  }
  out.is_connected = true;
  say(out);
  if (const auto clocks = (*link)->compare_clocks()) {
    out.clock_ns = clocks->ahead_ns;
    out.clock_error_ns = clocks->error_ns;
  }
  const auto so_far = [&out](const flow_facts& known) {
    out.ours = known;
    say(out);
  };
  out.ours = asked.only_tries ? try_out(**link, asked.transport, so_far)
                              : measure(**link, asked.transport, so_far);
  if (out.ours.error.empty() && !asked.only_tries)
    out.raw = measure_below(**link, *options, asked.address);
  say(out);
  return {};
}

/// Serves whatever is asked.
struct request_server {
  const engine::data_registry& known;

  result<void> operator()(const requests::data& asked) const {
    say(examine_data(asked, known));
    return {};
  }
  result<void> operator()(const auto& asked) const { return serve(asked); }
};

}  // namespace

int run_examiner(std::string_view text, const engine::data_registry& known) {
  const auto asked = decode_request(text);
  const auto done = asked ? std::visit(request_server{known}, *asked)
                          : result<void>(tl::unexpected(asked.error()));
  if (done) return 0;
  std::fprintf(stderr, "%s\n", done.error().text.c_str());
  return 1;
}

}  // namespace troupe::cluster::doctor
