#include "cluster/hosts/scheduler_core.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <utility>

#include "messages/base/near_miss.hpp"

namespace troupe::cluster {
namespace {

std::optional<std::uint32_t> number_of(std::string_view text) {
  std::uint32_t value = 0;
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || status != std::errc() || stop != text.data() + text.size())
    return std::nullopt;
  return value;
}

/// Cuts at commas outside of brackets.
std::vector<std::string_view> parts_of(std::string_view list) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i <= list.size(); ++i) {
    if (i < list.size() && list[i] == '[') ++depth;
    if (i < list.size() && list[i] == ']') --depth;
    if (i < list.size() && (list[i] != ',' || depth > 0)) continue;
    parts.push_back(list.substr(begin, i - begin));
    begin = i + 1;
  }
  return parts;
}

/// The numbers of "01-03,7", each as wide as the list writes it; nothing: it is no such list.
std::optional<std::vector<std::string>> numbers_of(std::string_view ranges) {
  std::vector<std::string> all;
  for (const auto part : parts_of(ranges)) {
    const auto dash = part.find('-');
    const auto digits = part.substr(0, dash);
    const auto first = number_of(digits);
    const auto last = dash == std::string_view::npos ? first : number_of(part.substr(dash + 1));
    if (!first || !last || *last < *first || *last - *first >= most_hosts) return std::nullopt;
    for (std::uint32_t i = *first; i <= *last && all.size() <= most_hosts; ++i) {
      const auto text = std::to_string(i);
      all.push_back(std::string(digits.size() - std::min(digits.size(), text.size()), '0') + text);
    }
  }
  return all;
}

/// The hosts of one part, whose brackets may be several: "rack[0-1]n[1-2]".
std::optional<std::vector<std::string>> hosts_of(std::string_view part) {
  std::vector<std::string> hosts{""};
  while (!part.empty()) {
    const auto open = part.find('[');
    for (auto& each : hosts) each += part.substr(0, open);
    if (part.substr(0, open).find(']') != std::string_view::npos) return std::nullopt;
    if (open == std::string_view::npos) break;
    const auto close = part.find(']', open);
    if (close == std::string_view::npos) return std::nullopt;
    const auto numbers = numbers_of(part.substr(open + 1, close - open - 1));
    if (!numbers || hosts.size() * numbers->size() > most_hosts) return std::nullopt;
    std::vector<std::string> longer;
    for (const auto& begin : hosts)
      for (const auto& number : *numbers) longer.push_back(begin + number);
    hosts = std::move(longer);
    part.remove_prefix(close + 1);
  }
  if (hosts.front().empty()) return std::nullopt;
  return hosts;
}

std::string names_of(const std::vector<given_host>& hosts) {
  std::string text;
  constexpr std::size_t most_named = 8;
  for (std::size_t i = 0; i < hosts.size() && i < most_named; ++i)
    text += (i > 0 ? ", " : "") + hosts[i].name;
  return hosts.size() > most_named ? text + ", .." : text;
}

}  // namespace

result<std::vector<std::string>> expand_host_list(std::string_view list) {
  std::vector<std::string> all;
  for (const auto part : parts_of(list)) {
    const auto hosts = hosts_of(part);
    if (!hosts || all.size() + hosts->size() > most_hosts)
      return fail(errc::bad_config,
                  "\"" + std::string(list.substr(0, 200)) + "\" is not a list of Slurm's nodes");
    all.insert(all.end(), hosts->begin(), hosts->end());
  }
  return all;
}

result<std::vector<given_host>> slurm_hosts(std::string_view list, std::string_view cores) {
  const auto names = expand_host_list(list);
  if (!names) return tl::unexpected(names.error());
  std::vector<given_host> hosts;
  for (const auto& name : *names) hosts.push_back({name, 0});
  if (cores.empty()) return hosts;
  std::size_t next = 0;
  for (const auto part : parts_of(cores)) {
    const auto times = part.find("(x");
    const auto here = number_of(part.substr(0, times));
    const auto count = times == std::string_view::npos
                           ? std::optional(1U)
                           : number_of(part.substr(times + 2, part.find(')', times) - times - 2));
    if (!here || !count || *count > hosts.size() - next)
      return fail(errc::bad_config, "\"" + std::string(cores.substr(0, 200)) +
                                        "\" does not say how many cores each node has");
    for (std::uint32_t i = 0; i < *count; ++i) hosts[next++].cores = *here;
  }
  return hosts;
}

result<std::vector<given_host>> host_file_hosts(std::string_view text) {
  std::vector<given_host> hosts;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const auto end = std::min(text.find('\n'), text.size());
    auto line = text.substr(0, std::min(end, text.find('#')));
    text.remove_prefix(std::min(end + 1, text.size()));
    std::vector<std::string> words;
    while (!line.empty()) {
      const auto begin = std::min(line.find_first_not_of(" \t\r"), line.size());
      line.remove_prefix(begin);
      const auto length = std::min(line.find_first_of(" \t\r"), line.size());
      if (length > 0) words.emplace_back(line.substr(0, length));
      line.remove_prefix(length);
    }
    if (words.empty()) continue;
    std::uint32_t slots = 0;
    for (std::size_t i = 1; i < words.size(); ++i) {
      const auto equals = words[i].find('=');
      const auto value =
          equals == std::string::npos ? std::nullopt : number_of(words[i].substr(equals + 1));
      const auto key = words[i].substr(0, equals);
      if (!value || (key != "slots" && key != "max_slots" && key != "max-slots"))
        return fail(errc::bad_config, "line " + std::to_string(number) + ": \"" + words[i] +
                                          "\" is not slots=N or max_slots=N");
      if (key == "slots") slots = *value;
    }
    const auto known = std::ranges::find(hosts, words.front(), &given_host::name);
    if (known == hosts.end())
      hosts.push_back({words.front(), slots});
    else
      known->cores += slots;
  }
  return hosts;
}

result<std::vector<node_entry>> nodes_on(std::vector<node_entry> nodes,
                                         const std::vector<given_host>& hosts,
                                         const std::string& source, const std::string& remedy) {
  if (nodes.empty()) {
    for (const auto& host : hosts) {
      auto& node = nodes.emplace_back();
      node.name = host.name;
      node.host = host.name;
      node.cores = host.cores;
    }
    return nodes;
  }
  std::set<std::string> named;
  for (const auto& node : nodes) {
    if (node.host.empty()) continue;
    if (std::ranges::find(hosts, node.host, &given_host::name) == hosts.end())
      return fail(errc::bad_config, "node " + node.name + ": " + node.host + " is not in " +
                                        source + ", which has " + names_of(hosts) +
                                        "; take another host, or " + remedy);
    named.insert(node.host);
  }
  auto next = hosts.begin();
  for (auto& node : nodes) {
    if (node.host.empty()) {
      next = std::find_if(next, hosts.end(),
                          [&](const given_host& each) { return !named.contains(each.name); });
      if (next == hosts.end())
        return fail(errc::bad_config, source + " has " + counted(hosts.size(), "host") + " (" +
                                          names_of(hosts) + "), but there are " +
                                          counted(nodes.size(), "[[node]] table") + "; " + remedy +
                                          ", or take tables out");
      node.host = (next++)->name;
    }
    const auto host = std::ranges::find(hosts, node.host, &given_host::name);
    if (node.cores == 0) node.cores = host->cores;
  }
  return nodes;
}

}  // namespace troupe::cluster
