#include "cluster/config/checks/host_checks.hpp"

#include <algorithm>

#include "cluster/config/words.hpp"
#include "cluster/hosts/host_addresses.hpp"
#include "cluster/hosts/network_range.hpp"

namespace troupe::cluster {
namespace {

std::string quoted(const std::string& text) {
  return '"' + text + '"';
}

// Whether a host's name is one word that no carrier takes for a flag; one that is left out is too.
bool is_host_word(const std::string& host) {
  return !host.starts_with('-') && std::ranges::none_of(host, [](unsigned char each) {
    return each <= ' ' || each == 0x7F || each == '"' || each == '\'';
  });
}

std::string words_on_port(const std::string& host, launch_way launch) {
  const std::string what = "names a port, which is no part of a host; ";
  if (launch != launch_way::ssh) return what + "write HOST";
  const auto colon = host.rfind(':');
  return what + "write HOST, and the port in ssh's config (Host HOST, Port " +
         host.substr(colon + 1) + ") or for all nodes in [cluster]: ssh_options = [\"-p\", \"" +
         host.substr(colon + 1) + "\"]";
}

std::string words_on_link_local(const std::string& host) {
  return quoted(host) +
         " is a link-local address, with which another host can do nothing: each would need the "
         "name of an interface of its own behind it (a zone, such as %eth0); name another address, "
         "such as fd00::2 or 10.0.0.2";
}

}  // namespace

std::string wrong_host(const std::string& text, launch_way launch, bool trainer_is_named) {
  const auto at = text.rfind('@');
  if (is_over_hosts(launch) && launch != launch_way::ssh && at != std::string::npos)
    return quoted(text) + " names a user, which only ssh takes; write HOST";
  if (!is_host_word(text) || text.ends_with('@'))
    return quoted(text) + " is no host; write HOST or USER@HOST";
  const auto host = host_of_user(text);
  const auto kind = kind_of(host);
  if (kind == address_kind::link_local && !trainer_is_named && is_over_hosts(launch))
    return quoted(host) +
           " is a link-local address, and so would be our own on the way there, at which no stage "
           "can join; name another address, or our own with --listen ([link] listen)";
  const bool is_version_6 = kind != address_kind::name && !host.starts_with('[');
  if (is_version_6 || host.find_first_of(":[]") == std::string::npos) return "";
  if (text.starts_with("ssh://"))
    return quoted(text) + " is a URI; write HOST or USER@HOST, and a port in ssh's config";
  if (has_port(host)) return quoted(text) + ' ' + words_on_port(host, launch);
  return quoted(text) +
         " is no host; write HOST or USER@HOST, and an address of IP version 6 without brackets, "
         "such as fd00::2";
}

std::string wrong_address(const std::string& text, const cluster_config& cluster) {
  if (text.empty()) return "";
  if (!is_host_word(text) || (has_port(text) && !is_address(text)))
    return quoted(text) + " is no address; write HOST or HOST:PORT, with a port from 0 to 65535";
  const auto host = host_of_wanted(text);
  const auto kind = kind_of(host);
  if (kind == address_kind::any)
    return quoted(host) +
           " stands for all addresses of a host, and leads no other one there; name the address "
           "that the other nodes reach, or its network (network = \"10.0.0.0/8\")";
  if (kind == address_kind::link_local) return words_on_link_local(host);
  if (kind != address_kind::loopback || !is_over_hosts(cluster.launch)) return "";
  const auto other = std::ranges::find_if(cluster.nodes, [](const node_entry& each) {
    return !each.host.empty() && !means_this_machine(host_of_user(each.host));
  });
  if (other == cluster.nodes.end()) return "";
  return quoted(host) +
         " is an address that only its own host reaches, but the run has hosts "
         "beside it, as " +
         other->host +
         "; name the address that the other nodes reach, or its network (network = "
         "\"10.0.0.0/8\")";
}

std::string wrong_network(const std::string& text) {
  if (text.empty()) return "";
  if (text.find('/') == std::string::npos || !network_range::parse(text))
    return quoted(text) +
           " is not a network; write an address whose host bits are 0 and its prefix, "
           "such as 10.0.0.0/8 or fd00::/64";
  const bool is_link_local = kind_of(text.substr(0, text.find('/'))) == address_kind::link_local;
  return is_link_local ? words_on_link_local(text) : "";
}

std::string wrong_trainer_address(const std::string& text, launch_way launch) {
  if (text.empty() || !is_address(text)) return "";
  const auto host = host_of(text);
  const auto kind = kind_of(host);
  if (kind == address_kind::link_local) return words_on_link_local(host);
  if (kind != address_kind::any || !is_over_hosts(launch)) return "";
  return quoted(host) + " stands for all addresses of this machine, and \"" +
         std::string(word_of(launch)) +
         "\" tells the nodes to connect to the one that is named; name the address that all of "
         "them reach, or its network ([cluster] network)";
}

}  // namespace troupe::cluster
