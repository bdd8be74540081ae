/// \file
/// The main function of the test programs. Each test case has a tag with the name of its source,
/// `[#future_test]`, so that the cases of a source can be run together. It ends a program without
/// the destructors of globals: those of LibTorch take a third as long as loading it, in each
/// process.
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include <catch2/catch_session.hpp>

int main(int count, char** arguments) {
  Catch::Session session;
  session.configData().filenamesAsTags = true;
  const int code = session.run(count, arguments);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return code;  // leaks are looked for at the end
#else
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(code);
#endif
}
