#include "scheduler/endpoint.h"

#include <fmt/format.h>

#include <charconv>

namespace leeway::scheduler {

std::string HostPort::text() const {
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

Result<HostPort> parse_host_port(std::string_view text) {
  const auto bad = [&](std::string_view why) {
    return fail(Code::kInvalidArgument,
                fmt::format("address '{}' {}; write HOST:PORT, as in 127.0.0.1:7000",
                            text.substr(0, 100), why));
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return bad("has no port");
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  else if (host.find(':') != std::string_view::npos)
    return bad("needs brackets around an IPv6 host");
  if (host.empty()) return bad("has no host");
  HostPort out{std::string(host), 0};
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), out.port);
  if (error != std::errc() || end != port.data() + port.size() || port.empty())
    return bad("has no port number from 0 to 65535");
  return out;
}

}  // namespace leeway::scheduler
